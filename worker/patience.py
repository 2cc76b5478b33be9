"""Asking a database that may be away for a while."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

from worker.lease import Lease, steady

log = logging.getLogger(__name__)
T = TypeVar("T")

UNREACHABLE = (OperationalError, InterfaceError, InternalError)
_RETRY_SECONDS = 1.0
_MOST_SECONDS = 86_400.0  # a supervisor that waits costs nothing, and is not mistaken for one that crashed
_FULL = ("database or disk is full", "No space left on device")


class Unproved(RuntimeError):  # noqa: N818
    """The database has been away for so long that the run is left to others."""


class Patience:
    """Two ways to ask: now and then while there is other work (`attempt`), or until there is an answer (`insist`).

    `on_full` is called where the database cannot be written because its disk is full; it frees what it can.
    """

    def __init__(self, lease: Lease, on_full: Callable[[], object] = lambda: None) -> None:
        self._lease = lease
        self._on_full = on_full
        self._away_until = 0.0

    def attempt(self, action: Callable[[], object]) -> None:
        """Does what needs the database, unless that is away; the caller comes again in a moment anyway."""
        if steady() < self._away_until:
            return
        try:
            action()
        except UNREACHABLE as error:
            self._away_until = steady() + _RETRY_SECONDS
            self._tell(error)

    def regain(self) -> None:
        """Once nothing trains any more: holds the run anew if nobody has taken it.

        Raises:
            LeaseLost: somebody has.
            Unproved: there was no answer for a day.
        """
        self.insist(self._lease.renew, is_fenced=True)

    def insist(self, action: Callable[[], T], *, is_fenced: bool = False) -> T:
        """Does what needs the database while nothing trains, however long that is away.

        The run is held anew where the lease has run out meanwhile; with `is_fenced` the action itself refuses where the run is
        another's.

        Raises:
            LeaseLost: the run is another's.
            Unproved: there was no answer for a day.
        """
        deadline = steady() + _MOST_SECONDS
        while steady() < deadline:
            try:
                if not is_fenced and not self._lease.proved:
                    self._lease.renew()
                return action()
            except UNREACHABLE as error:
                self._tell(error)
            time.sleep(_RETRY_SECONDS)
        raise Unproved("The database does not answer.")

    def _tell(self, error: Exception) -> None:
        if says_full(error):
            log.error("the database's disk is full: %s", error)
            self._on_full()
        else:
            log.warning("the database does not answer: %s", error)


def says_full(error: Exception) -> bool:
    """Whether a database refused to write because its disk is full (SQLite's SQLITE_FULL, PostgreSQL's 53100)."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state == "53100" or any(words in str(error) for words in _FULL)

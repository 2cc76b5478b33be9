"""Asking a database that may be away for a while, for as long as the run is certainly ours."""

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


class Unproved(RuntimeError):  # noqa: N818
    """The database has been away for so long that the run may be another's by now."""


class Patience:
    """Two ways to ask: now and then while there is other work (`attempt`), or until there is an answer (`insist`)."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._away_until = 0.0

    def attempt(self, action: Callable[[], object]) -> None:
        """Does what needs the database, unless that is away; the caller comes again in a moment anyway."""
        if steady() < self._away_until:
            return
        try:
            action()
        except UNREACHABLE as error:
            self._away_until = steady() + _RETRY_SECONDS
            log.warning("the database does not answer: %s", error)

    def regain(self) -> None:
        """Once nothing trains any more: holds the run anew if nobody has taken it, and waits a lease's time for the answer.

        Raises:
            LeaseLost: somebody has.
            Unproved: there was no answer.
        """
        deadline = steady() + self._lease.seconds
        while steady() < deadline:
            try:
                self._lease.renew()
                return
            except UNREACHABLE as error:
                log.warning("the database does not answer: %s", error)
            time.sleep(_RETRY_SECONDS)
        raise Unproved("The database does not answer.")

    def insist(self, action: Callable[[], T]) -> T:
        """Does what needs the database and cannot wait.

        Raises:
            Unproved: the run may be another's before the database answers.
        """
        while True:
            try:
                return action()
            except UNREACHABLE as error:
                log.warning("the database does not answer: %s", error)
            if not self._lease.proved:
                raise Unproved("The database does not answer.")
            time.sleep(_RETRY_SECONDS)

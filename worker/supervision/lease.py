"""Holds work by a lease: by the database's clock, and by a monotonic clock while the database is unreachable."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from worker.machine.process_identity import me
from worker.settings import get_settings
from worker.store import database
from worker.store.database import UNREACHABLE, says_full
from worker.store.tables.held import Held
from worker.store.work import Key, Kind

Row = TypeVar("Row", bound=Held)
T = TypeVar("T")
_RETRY_SECONDS = 1.0
_MOST_SECONDS = 86_400.0  # waiting costs nothing, and a waiting supervisor is not mistaken for a crashed one

log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0
_STANDSTILL_SECONDS = 10.0  # a thread that wakes so late could not run
_MARGIN = 0.1  # of the lease: time to kill the work before another process may start it


def steady() -> float:
    """Seconds of a clock that cannot be set; it includes time in suspend where the system supports that."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseUncertain(RuntimeError):  # noqa: N818
    """The lease may have expired while the database was unreachable."""


class Lease(Generic[Row]):
    """This process's lease on an attempt at some work, and its database calls, which are tried again while the lease holds.

    `on_full` is called if the database's disk is full; it frees space.
    """

    def __init__(self, kind: Kind[Row], key: Key, on_full: Callable[[], object] = lambda: None) -> None:
        settings = get_settings()
        self._kind, self._key, self._on_full = kind, key, on_full
        self._holder = str(me())
        self._seconds, self._renew_seconds = settings.lease_seconds, settings.renew_seconds
        self._renewed = self._asked = steady()
        self._stored: dict[str, Any] = {}
        self._over = threading.Event()
        self._unreachable_until = 0.0
        self.gave_up = ""
        """Why the work was killed, as a sentence: the lease could have expired."""

    def adopt(self, **values: Any) -> bool:
        """Takes over the claim from the worker and stores values. False if the attempt is no longer the current one."""
        began = steady()
        with database.write() as session:
            held = self._kind.adopt(session, self._key, holder=self._holder, lease_seconds=self._seconds, **values)
        self._renewed = began
        return held

    def keep(self, **values: Any) -> Row | None:
        """Renews the lease when it is due or values have changed, and returns the row with what is requested, about a second old;
        None if it was read within this second. Call it often.

        Raises:
            LeaseLost: another process holds the work, or it has ended.
            sqlalchemy.exc.DBAPIError: the database is unreachable; the lease holds while `certain`.
        """
        began = steady()
        new = {} if values == self._stored else values
        if began - self._renewed >= (_ASK_SECONDS if new else self._renew_seconds):
            row, self._stored = self.renew(**new), values
            return row
        return self._ask(began) if began - self._asked >= _ASK_SECONDS else None

    def renew(self, **values: Any) -> Row:
        """Renews the lease, stores values, and returns the row. Raises as `keep`."""
        began = steady()
        with database.write() as session:
            row = self._kind.renew(session, self._key, holder=self._holder, lease_seconds=self._seconds, **values)
        # Counted from before the query: the database's lease starts no earlier.
        self._renewed = self._asked = began
        return row

    def _ask(self, began: float) -> Row:
        with database.read() as session:
            row = self._kind.check(session, self._key, holder=self._holder)
        self._asked = began
        return row

    @property
    def certain(self) -> bool:
        """True until the lease could have expired."""
        return steady() < self._certain_until

    @property
    def _certain_until(self) -> float:
        return self._renewed + self._seconds * (1 - _MARGIN)

    @contextmanager
    def guarded(self, kill: Callable[[str], object]) -> Iterator[None]:
        """A context in which a thread sets `gave_up` and calls `kill` with it when the lease could have expired.

        The main thread may hang in a database call.
        """
        threading.Thread(target=self._guard, args=(kill,), name="lease guard", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def _guard(self, kill: Callable[[str], object]) -> None:
        while True:
            # Sleeps until the lease could expire: waking earlier would take CPU time from the training.
            wakes = max(self._certain_until, steady() + self._seconds / 300)
            if self._over.wait(wakes - steady()):
                return
            if not self.certain:
                self.gave_up = self._why(late=steady() - wakes)
                log.error("%s: %s", self._kind.title(self._key), self.gave_up)
                kill(self.gave_up)
                return

    def _why(self, late: float) -> str:
        """Why the lease was not renewed, if its guard woke `late` seconds too late."""
        if late > _STANDSTILL_SECONDS:
            return f"Its supervisor stood still, {late:.0f} s beyond its lease: the machine is overloaded or was suspended."
        return "The database was unreachable for so long that the work was stopped."

    def try_once(self, action: Callable[[], T]) -> T | None:
        """Runs `action` once; an unreachable database is logged, and for a second no other call is tried."""
        if steady() < self._unreachable_until:
            return None
        try:
            return action()
        except UNREACHABLE as error:
            self._unreachable_until = steady() + _RETRY_SECONDS
            self._log(error)
        return None

    def until_answered(self, action: Callable[[], T], *, is_fenced: bool = False) -> T:
        """Runs `action` until the database answers, for up to a day; for use while nothing trains.

        Renews the lease first if it may have expired; with `is_fenced` the action itself checks who holds the work.

        Raises:
            LeaseLost: another process holds the work.
            LeaseUncertain: the database was unreachable for a day.
        """
        deadline = steady() + _MOST_SECONDS
        while steady() < deadline:
            try:
                if not is_fenced and not self.certain:
                    self.renew()
                return action()
            except UNREACHABLE as error:
                self._log(error)
            time.sleep(_RETRY_SECONDS)
        raise LeaseUncertain("The database is unreachable.")

    def _log(self, error: Exception) -> None:
        if says_full(error):
            log.error("the database's disk is full: %s", error)
            self._on_full()
        else:
            log.warning("the database is unreachable: %s", error)

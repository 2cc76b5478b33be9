"""Holds a run by a lease: by the database's clock, and by a monotonic clock while the database is unreachable."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from worker.machine.process_identity import me
from worker.settings import Settings
from worker.store import claims, database
from worker.store.database import UNREACHABLE, says_full
from worker.store.tables import Request, Run, Status

T = TypeVar("T")
_RETRY_SECONDS = 1.0
_MOST_SECONDS = 86_400.0  # waiting costs nothing, and a waiting supervisor is not mistaken for a crashed one

log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0
_MARGIN = 0.1  # of the lease: time to kill the training before another process may start it


def steady() -> float:
    """Seconds of a clock that cannot be set; it includes time in suspend where the system supports that."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """A supervisor's lease on its run."""

    def __init__(self, run_id: str, attempt: int, settings: Settings) -> None:
        self.run_id = run_id
        self.attempt = attempt
        self.owner = str(me())
        self.seconds = settings.lease_seconds
        self._renew_seconds = settings.renew_seconds
        self._renewed = self._asked = steady()
        self._over = threading.Event()
        self.ended_training = False

    def adopt(self) -> bool:
        """Takes over the claim from the worker. False if the attempt is no longer the current one."""
        began = steady()
        with database.write() as session:
            held = claims.adopt(
                session=session, run_id=self.run_id, attempt=self.attempt, owner=self.owner, lease_seconds=self.seconds
            )
        self._renewed = began
        return held

    def keep(self) -> Request | None:
        """Renews the lease when due and returns the current request, at most about a second old. Call it often.

        Raises:
            LeaseLost: another process holds the run, or it has ended.
            sqlalchemy.exc.DBAPIError: the database is unreachable; the lease holds while `certain`.
        """
        began = steady()
        if began - self._renewed >= self._renew_seconds:
            return self.renew()
        if began - self._asked >= _ASK_SECONDS:
            return self._ask(began)
        return None

    def renew(self) -> Request | None:
        """Renews the lease and returns the current request. Raises as `keep`."""
        began = steady()
        with database.write() as session:
            request = claims.renew(
                session=session, run_id=self.run_id, attempt=self.attempt, owner=self.owner, lease_seconds=self.seconds
            )
        # Counted from before the query: the database's lease starts no earlier.
        self._renewed = self._asked = began
        return request

    def _ask(self, began: float) -> Request | None:
        with database.read() as session:
            run = session.get(Run, self.run_id)
        ours = (self.attempt, Status.RUNNING, self.owner)
        if run is None or (run.attempt, run.status, run.lease_owner) != ours:
            raise claims.LeaseLost(f"Run {self.run_id}, attempt {self.attempt}, is no longer held by {self.owner}.")
        self._asked = began
        return run.request

    @property
    def certain(self) -> bool:
        """True until the lease could have expired."""
        return steady() < self._certain_until

    @property
    def _certain_until(self) -> float:
        return self._renewed + self.seconds * (1 - _MARGIN)

    def guard(self, kill: Callable[[], object]) -> None:
        """Starts a thread that calls `kill` when the lease could have expired, until `release`.

        The main thread may hang in a database call.
        """
        threading.Thread(target=self._guard, args=(kill,), name="lease guard", daemon=True).start()

    def _guard(self, kill: Callable[[], object]) -> None:
        # Sleeps until the lease could expire: waking earlier would take CPU time from the training.
        while not self._over.wait(max(self._certain_until - steady(), self.seconds / 300)):
            if not self.certain:
                log.error(
                    "the database has been unreachable for %.0f s: stopping the training", self.seconds * (1 - _MARGIN)
                )
                self.ended_training = True
                kill()
                return

    def release(self) -> None:
        """Stops the guard thread."""
        self._over.set()


class LeaseUncertain(RuntimeError):  # noqa: N818
    """The lease may have expired while the database was unreachable."""


class DatabaseRetry:
    """Retries database calls for as long as the lease holds.

    `on_full` is called if the database's disk is full; it frees space.
    """

    def __init__(self, lease: Lease, on_full: Callable[[], object] = lambda: None) -> None:
        self._lease = lease
        self._on_full = on_full
        self._unreachable_until = 0.0

    def try_once(self, action: Callable[[], object]) -> None:
        """Runs `action` once; an unreachable database is logged, and for a second no other call is tried."""
        if steady() < self._unreachable_until:
            return
        try:
            action()
        except UNREACHABLE as error:
            self._unreachable_until = steady() + _RETRY_SECONDS
            self._log(error)

    def renew_after_training(self) -> None:
        """Renews the lease after the training has ended, if no other process has taken the run.

        Raises:
            LeaseLost: another process has the run.
            LeaseUncertain: the database was unreachable for a day.
        """
        self.until_answered(self._lease.renew, is_fenced=True)

    def until_answered(self, action: Callable[[], T], *, is_fenced: bool = False) -> T:
        """Runs `action` until the database answers, for up to a day; for use while nothing trains.

        Renews the lease first if it may have expired; with `is_fenced` the action itself checks who holds the run.

        Raises:
            LeaseLost: another process holds the run.
            LeaseUncertain: the database was unreachable for a day.
        """
        deadline = steady() + _MOST_SECONDS
        while steady() < deadline:
            try:
                if not is_fenced and not self._lease.certain:
                    self._lease.renew()
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

"""Holding a run: by the database's clock, and by a clock that nobody sets while the database does not answer."""

import logging
import threading
import time
from collections.abc import Callable

from worker import database, runs
from worker.identity import me
from worker.models import Request, Run, Status
from worker.settings import Settings

log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0
_MARGIN = 0.1  # of the lease: within it what trains is ended for certain, before anybody else may begin


def steady() -> float:
    """Seconds that no setting of the clock moves; where the system can count them, those of a machine's sleep too."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """A supervisor's hold on its run."""

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
        """Takes the claim over from the worker. False where the attempt is no longer the current one."""
        began = steady()
        with database.write() as session:
            held = runs.adopt(
                session=session, run_id=self.run_id, attempt=self.attempt, owner=self.owner, lease_seconds=self.seconds
            )
        self._renewed = began
        return held

    def keep(self) -> Request | None:
        """To be called often: renews when it is time, and returns what is asked of the run, about a second old.

        Raises:
            LeaseLost: the run is another's, or has ended.
            sqlalchemy.exc.DBAPIError: the database does not answer; the lease holds as long as `proved`.
        """
        began = steady()
        if began - self._renewed >= self._renew_seconds:
            return self.renew()
        if began - self._asked >= _ASK_SECONDS:
            return self._ask(began)
        return None

    def renew(self) -> Request | None:
        """Renews, and returns what is asked of the run. Raises as `keep`."""
        began = steady()
        with database.write() as session:
            request = runs.renew(
                session=session, run_id=self.run_id, attempt=self.attempt, owner=self.owner, lease_seconds=self.seconds
            )
        # Counted from before the question: the database cannot have begun to count earlier.
        self._renewed = self._asked = began
        return request

    def _ask(self, began: float) -> Request | None:
        with database.read() as session:
            run = session.get(Run, self.run_id)
        ours = (self.attempt, Status.RUNNING, self.owner)
        if run is None or (run.attempt, run.status, run.lease_owner) != ours:
            raise runs.LeaseLost(f"Run {self.run_id}, attempt {self.attempt}, is no longer held by {self.owner}.")
        self._asked = began
        return run.request

    @property
    def proved(self) -> bool:
        """Whether nobody else can have the run, whatever the database would say now."""
        return steady() < self._proved_until

    @property
    def _proved_until(self) -> float:
        return self._renewed + self.seconds * (1 - _MARGIN)

    def guard(self, kill: Callable[[], object]) -> None:
        """From now on, calls `kill` from a thread of its own should the lease be unproved, until `release`.

        The thread that asks the database may hang in the question.
        """
        threading.Thread(target=self._guard, args=(kill,), name="lease guard", daemon=True).start()

    def _guard(self, kill: Callable[[], object]) -> None:
        # Sleeps to the moment at which it may be unproved and no sooner: waking takes time from the training.
        while not self._over.wait(max(self._proved_until - steady(), self.seconds / 300)):
            if not self.proved:
                log.error("the database has not answered for %.0f s: ending the training", self.seconds * (1 - _MARGIN))
                self.ended_training = True
                kill()
                return

    def release(self) -> None:
        """Ends the guard."""
        self._over.set()

"""The worker's own rounds: runs whose supervisor is gone are queued again, and waiting runs are started.

The doorbell is only quicker. Whatever becomes of messages, a waiting run is found within seconds.
"""

import logging
import threading

from sqlmodel import Session, col, select

from worker import closing, database, logs, outcome, process, runs, starting
from worker.identity import Identity, hostname
from worker.models import Request, Run, Status
from worker.outcome import Verdict
from worker.patience import UNREACHABLE
from worker.reports import Seen
from worker.settings import get_settings
from worker.trainer import end_left_behind

log = logging.getLogger(__name__)

ROUND_SECONDS = 5.0
_MANY = 100_000
_ERROR_LINES = 60


class Reaper(threading.Thread):
    """Makes a round at once, then every few seconds, until `stop`."""

    def __init__(self) -> None:
        super().__init__(name="reaper", daemon=True)
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            starting.supervisor_ended.clear()
            try:
                look()
                starting.prepare()
            except UNREACHABLE as error:
                log.warning("the database does not answer: %s", error)
            except Exception:
                # The next round is the remedy for whatever it was; without a reaper runs would wait for ever.
                log.exception("a round failed")
            starting.supervisor_ended.wait(ROUND_SECONDS)

    def stop(self) -> None:
        """Ends the rounds; no run is started after this returns, but for one that is being started."""
        self._stopping.set()
        starting.supervisor_ended.set()


def look() -> None:
    """One round."""
    for run in lost_runs():
        recover(run)
    starting.start_waiting()


def lost_runs() -> list[Run]:
    """Running runs that nobody holds: the lease has run out, or its owner ran on this machine and is certainly dead."""
    with database.read() as session:
        expired = {run.id for run in runs.lost(session=session)}
        running = runs.listing(session=session, status=Status.RUNNING, limit=_MANY)
    return [run for run in running if run.id in expired or _owner_is_dead(run) or starting.abandoned(run)]


def _owner_is_dead(run: Run) -> bool:
    owner = Identity.parse(run.lease_owner)
    # With the embedded database there is no other machine.
    return owner is not None and owner.provably_dead(only_machine=not get_settings().database_url)


def recover(run: Run) -> bool:
    """Queues a lost run again, or fails it where it has been lost too often. False where it is held after all."""
    expired = not (_owner_is_dead(run) or starting.abandoned(run))
    _end_what_is_left(run)
    with database.write() as session:
        current = _still_lost(session, run, expired)
        if current is None:
            return False
        log.warning("run %s, attempt %d, is lost", run.id, run.attempt)
        verdict = _verdict(session, current, expired)
        most = get_settings().max_attempts
        return closing.close(session=session, run=current, verdict=verdict, max_attempts=most, counted_as="lost")


def _end_what_is_left(run: Run) -> None:
    """No two trainers: what may still live of the attempt on this machine ends first, a hanging supervisor too."""
    owner = Identity.parse(run.lease_owner)
    if owner is None or owner.host != hostname():
        return
    if owner.here and owner.alive and process.has_argument(owner.pid, run.id):  # not the worker that claimed it
        process.kill_tree(owner.pid)
    end_left_behind(run.id)


def _still_lost(session: Session, run: Run, expired: bool) -> Run | None:
    """The run, locked, if its holder is the one that was found to be lost and has not been heard of since."""
    same = (Run.id == run.id, Run.attempt == run.attempt, Run.status == Status.RUNNING, Run.lease_owner == run.lease_owner)
    statement = select(Run).where(*same)
    if expired:
        statement = statement.where(col(Run.lease_expires_at) < database.clock())
    return session.exec(statement.with_for_update()).first()


def _verdict(session: Session, run: Run, expired: bool) -> Verdict:
    goes_on = "It goes on from its last whole checkpoint."
    if run.request is Request.REQUEUE:
        return Verdict(Status.QUEUED, f"It was ended before it could save. {goes_on}")
    host = (run.lease_owner or "").partition(":")[0]
    if expired:
        reason = f"Nothing was heard of it for {get_settings().lease_seconds:.0f} s from the machine {host}."
    else:
        reason = f"Its supervisor on the machine {host} ended unexpectedly."
    lines = logs.tail(session=session, run_id=run.id, limit=_ERROR_LINES)
    seen = Seen(phase=run.phase, step=run.step)
    seen.log.extend(line.text for line in lines)
    return Verdict(Status.FAILED, reason, outcome.error_of(seen, reason), retry=True, goes_on=goes_on)

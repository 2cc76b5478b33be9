"""The worker's own rounds: runs whose supervisor is gone are queued again, and waiting runs are started.

The doorbell is only quicker. Whatever becomes of messages, a waiting run is found within seconds.
"""

import logging
import threading
from collections.abc import Iterable

from sqlmodel import Session

from training import disk
from worker import closing, database, logs, outcome, overload, process, runs, starting
from worker.identity import Identity, hostname, me
from worker.lease import steady
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
_RENEWALS = 3
_GOES_ON = "It goes on from its last whole checkpoint."


class Reaper(threading.Thread):
    """Makes a round at once, then every few seconds, until `stop`."""

    def __init__(self) -> None:
        super().__init__(name="reaper", daemon=True)
        self._stopping = threading.Event()

    def run(self) -> None:
        gauge = overload.Gauge()
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
            gauge.sleep(starting.supervisor_ended, ROUND_SECONDS)

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
    silent = _silence.of(run for run in running if run.id in expired and not starting.awaits_adoption(run))
    return [run for run in running if run.id in silent or _holder_is_dead(run)]


class Silence:
    """How long leases that ran out have not been renewed since, by a clock that nobody sets.

    When the database's clock is set forward, all of them run out at once; whoever holds one renews it in a moment.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, int, float | None], float] = {}

    def of(self, expired: Iterable[Run]) -> set[str]:
        """Which of the runs with an expired lease have been silent for a few renewals."""
        now, seconds = steady(), _RENEWALS * get_settings().renew_seconds
        leases = {(run.id, run.attempt, run.lease_expires_at) for run in expired}
        self._since = {lease: self._since.get(lease, now) for lease in leases}
        return {lease[0] for lease, since in self._since.items() if now - since >= seconds}


_silence = Silence()


def _holder_is_dead(run: Run) -> bool:
    owner = Identity.parse(run.lease_owner)
    # With the embedded database there is no other machine.
    dead = owner is not None and owner.provably_dead(only_machine=not get_settings().database_url)
    return dead or starting.abandoned(run)


def recover(run: Run) -> bool:
    """Queues a lost run again, or fails it where it has been lost too often. False where it is held after all."""
    expired, late = not _holder_is_dead(run), _living_holder(run) is not None
    seconds = get_settings().lease_seconds
    with database.write() as session:
        # From here on its holder can renew no more: whatever lives of it is not the holder's any longer.
        if runs.seize(session=session, run=run, owner=str(me()), expired=expired, lease_seconds=seconds) is None:
            return False
    _end_what_is_left(run)
    with database.write() as session:
        current = runs.get(session=session, run_id=run.id)
        if (current.attempt, current.status, current.lease_owner) != (run.attempt, Status.RUNNING, str(me())):
            return False  # its supervisor came to the run's end before it was ended itself
        log.warning("run %s, attempt %d, is %s", run.id, run.attempt, "starved" if late else "lost")
        if late:
            reason = f"{_starved_words(run)} {_GOES_ON}"
            return runs.requeue(session=session, run_id=run.id, attempt=run.attempt, reason=reason, outcome="starved")
        verdict = _verdict(session, current, _host(run), expired)
        most = get_settings().max_attempts
        return closing.close(session=session, run=current, verdict=verdict, max_attempts=most, counted_as="lost")


def _living_holder(run: Run) -> Identity | None:
    """The process that holds the run by its lease, where it is one of this machine and lives."""
    owner = Identity.parse(run.lease_owner)
    return owner if owner and owner.here and owner.alive and not starting.abandoned(run) else None


def _end_what_is_left(run: Run) -> None:
    """No two trainers: what may still live of the attempt on this machine ends first, a hanging supervisor too."""
    if _host(run) != hostname():
        return
    holder = _living_holder(run)
    if holder and runs.adopted(run):  # else the holder is a worker, which has other runs too
        process.kill_tree(holder.pid)
    end_left_behind(run.id)
    disk.give_up_reserve(get_settings().runs_dir / run.id)


def _host(run: Run) -> str:
    return (run.lease_owner or "").partition(":")[0]


def _starved_words(run: Run) -> str:
    who = "supervisor" if runs.adopted(run) else "worker"
    silent = f"did not renew its lease for {get_settings().lease_seconds:.0f} s although it was alive"
    return f"Its {who} on the machine {_host(run)} {silent}: the machine is overloaded, or was suspended."


def _verdict(session: Session, run: Run, host: str, expired: bool) -> Verdict:
    if run.request is Request.REQUEUE:
        return Verdict(Status.QUEUED, f"It was ended before it could save. {_GOES_ON}")
    if expired:
        reason = f"Nothing was heard of it for {get_settings().lease_seconds:.0f} s from the machine {host}."
    else:
        reason = f"Its supervisor on the machine {host} ended unexpectedly."
    lines = logs.tail(session=session, run_id=run.id, limit=_ERROR_LINES)
    seen = Seen(phase=run.phase, step=run.step)
    seen.log.extend(line.text for line in lines)
    return Verdict(Status.FAILED, reason, outcome.error_of(seen, reason), retry=True, goes_on=_GOES_ON)

"""Stopping Lathe while runs are running: they save a checkpoint, are requeued, and continue at the next start."""

import threading
import time
from collections.abc import Callable

from worker.machine.process_identity import hostname
from worker.store import claims, database, runs
from worker.store.database import UNREACHABLE
from worker.store.tables import Run, Status
from worker.supervision import holders

WAIT_SECONDS = 90.0  # a supervisor ends its training within 60 s
_POLL_SECONDS = 0.3
Say = Callable[[str], None]


def in_progress() -> list[Run]:
    """The runs that are running on this machine."""
    with database.read() as session:
        running = runs.with_status(session=session, status=Status.RUNNING)
    return [run for run in running if holders.host_of(run) == hostname()]


def describe(run: Run) -> str:
    """A run in a line: id, name and progress."""
    steps = f"step {run.step} of {run.total_steps}" if run.total_steps else run.phase or "starting"
    return f"  {run.id}  {run.name}, {steps}"


def requeue_running_runs(say: Say, forced: threading.Event) -> bool:
    """Requests the runs on this machine to save and stop, and waits until they have or `forced` is set.

    Returns False if it had to kill some; these also continue from their last checkpoint.
    """
    try:
        with database.write() as session:
            runs.request_requeue_all(session=session, host=hostname())
        waiting = {run.id: run for run in in_progress()}
    except UNREACHABLE as error:
        say(f"The database is unreachable ({error}); running runs do not save a checkpoint.")
        return True
    deadline = time.monotonic() + WAIT_SECONDS
    while waiting and not forced.is_set() and time.monotonic() < deadline:
        forced.wait(_POLL_SECONDS)
        waiting = _still_running(waiting, say)
    if waiting:
        _kill(waiting, say)
    return not waiting


def _still_running(waiting: dict[str, Run], say: Say) -> dict[str, Run]:
    """The runs that are still running; reports the others."""
    try:
        with database.read() as session:
            now = [runs.get(session=session, run_id=run_id) for run_id in waiting]
    except UNREACHABLE:
        return waiting
    for run in now:
        if run.status is not Status.RUNNING:
            outcome = "saved and requeued" if run.status is Status.QUEUED else run.status.value
            say(f"  {run.id}  {outcome} at step {run.step}")
    return {run.id: run for run in now if run.status is Status.RUNNING}


def _kill(waiting: dict[str, Run], say: Say) -> None:
    for run in waiting.values():
        if claims.adopted(run):
            holders.end_holder(run)
        say(f"  {run.id}  killed; it continues from its last checkpoint at the next start")

"""Stopping Lathe while runs are in progress: they are saved, go back to the queue and go on at the next start."""

import threading
import time
from collections.abc import Callable

from worker import database, process, runs
from worker.identity import Identity, hostname
from worker.models import Run, Status
from worker.patience import UNREACHABLE

WAIT_SECONDS = 90.0  # a supervisor ends its training after 60 s at the latest
_LOOK_SECONDS = 0.3
Say = Callable[[str], None]


def in_progress() -> list[Run]:
    """The runs that train on this machine."""
    with database.read() as session:
        running = runs.listing(session=session, status=Status.RUNNING, limit=100_000)
    return [run for run in running if (run.lease_owner or "").partition(":")[0] == hostname()]


def describe(run: Run) -> str:
    """A run in a line: id, name and how far it is."""
    steps = f"step {run.step} of {run.total_steps}" if run.total_steps else run.phase or "starting"
    return f"  {run.id}  {run.name}, {steps}"


def give_back(say: Say, forced: threading.Event) -> bool:
    """Asks the runs on this machine to save and to leave, and waits until they have or `forced` is set.

    False where some had to be ended by force; they go on from their last checkpoint all the same.
    """
    try:
        with database.write() as session:
            runs.request_requeue_all(session=session, host=hostname())
        waiting = {run.id: run for run in in_progress()}
    except UNREACHABLE as error:
        say(f"The database does not answer ({error}); runs in progress are not asked to save.")
        return True
    deadline = time.monotonic() + WAIT_SECONDS
    while waiting and not forced.is_set() and time.monotonic() < deadline:
        forced.wait(_LOOK_SECONDS)
        waiting = _still_there(waiting, say)
    if waiting:
        _end_by_force(waiting, say)
    return not waiting


def _still_there(waiting: dict[str, Run], say: Say) -> dict[str, Run]:
    """Those that have not left; says of the others what became of them."""
    try:
        with database.read() as session:
            now = [runs.get(session=session, run_id=run_id) for run_id in waiting]
    except UNREACHABLE:
        return waiting
    for run in now:
        if run.status is not Status.RUNNING:
            what = "saved and queued again" if run.status is Status.QUEUED else run.status.value
            say(f"  {run.id}  {what} at step {run.step}")
    return {run.id: run for run in now if run.status is Status.RUNNING}


def _end_by_force(left: dict[str, Run], say: Say) -> None:
    for run in left.values():
        supervisor = Identity.parse(run.lease_owner) if runs.adopted(run) else None
        if supervisor and supervisor.here and supervisor.alive:
            process.kill_tree(supervisor.pid)
        say(f"  {run.id}  ended by force; it goes on from its last checkpoint at the next start")

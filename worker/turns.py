"""Whose turn it is: the oldest run first, and no run waits for ever because smaller ones keep overtaking it."""

from collections.abc import Iterable

from worker import devices
from worker.models import Run


def next_run(
    waiting: Iterable[Run], free: list[str], own: list[str], now: float, overtaking_seconds: float
) -> tuple[Run, list[str]] | None:
    """The run to start and the devices it takes, or None where nothing can or may start.

    `waiting` are queued runs, the oldest first; `free` of this machine's devices `own` are not leased; `now` is in seconds by
    the database's clock. A run that needs more devices than are free is overtaken by later ones that need less, until it has
    been queued for `overtaking_seconds`; from then on what becomes free is kept for it. One that needs more than this
    machine has holds nobody up here.
    """
    for run in waiting:
        processes = int(run.config.get("num_processes", 1))
        if chosen := devices.choose(processes, free):
            return run, chosen
        if now - run.queued_at > overtaking_seconds and devices.choose(processes, own):
            return None
    return None

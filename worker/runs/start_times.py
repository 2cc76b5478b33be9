"""When waiting runs start: from the measured speed of the runs ahead of them."""

import heapq
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlmodel import Session, col, select

from worker.store import database, runs, waiting
from worker.store.tables import Run, Status

_ALIKE = 5


class Job(NamedTuple):
    """A run as the queue sees it: its devices, and the seconds that it still takes (None if unknown)."""

    devices: int
    seconds: float | None


def expected(*, session: Session, devices: int) -> dict[str, float | None]:
    """The seconds until each startable run begins, by id; None where the time of a run ahead of it is unknown.

    `devices` is the number of devices that runs share.
    """
    running = runs.with_status(session=session, status=Status.RUNNING)
    queued = waiting.startable(session=session)
    times = starts([_job(session, run) for run in running], [_job(session, run) for run in queued], devices)
    return dict(zip([run.id for run in queued], times, strict=True))


def starts(running: Iterable[Job], queued: Sequence[Job], devices: int) -> list[float | None]:
    """The seconds until each of the `queued` starts, in their order, none overtaking another.

    A run that needs more devices than there are never starts, and holds nobody up.
    """
    ends: list[float] = [0.0] * devices
    for job in running:
        for _ in range(min(job.devices, devices)):
            heapq.heapreplace(ends, float("inf") if job.seconds is None else job.seconds)
    times: list[float | None] = []
    earliest = 0.0
    for job in queued:
        if job.devices > devices:
            times.append(None)
            continue
        taken = [heapq.heappop(ends) for _ in range(job.devices)]
        earliest = max(earliest, *taken)
        times.append(None if earliest == float("inf") else earliest)
        end = float("inf") if job.seconds is None else earliest + job.seconds
        for _ in taken:
            heapq.heappush(ends, end)
    return times


def _job(session: Session, run: Run) -> Job:
    on_cpu = any(device.endswith("/cpu") for device in run.devices)
    needed = len(run.devices) or int(run.config.get("num_processes", 1))
    return Job(1 if on_cpu else needed, _seconds_left(session, run))


def _seconds_left(session: Session, run: Run) -> float | None:
    """By the run's own speed if it has trained; else the median duration of finished runs with its model and data."""
    if run.seconds_per_step and run.total_steps:
        return max(run.total_steps - run.step, 0) * run.seconds_per_step
    config = col(Run.config)
    same = [config[name].as_string() == run.config.get(name) for name in ("model", "method")]
    same.append(
        col(Run.dataset_id) == run.dataset_id if run.dataset_id else config["data"].as_string() == run.config["data"]
    )
    alike = select(Run.finished_at, Run.started_at).where(Run.status == Status.FINISHED, *same)
    took = [
        end - begin for end, begin in session.exec(alike.order_by(col(Run.id).desc()).limit(_ALIKE)) if end and begin
    ]
    if not took:
        return None
    elapsed = database.now(session=session) - run.started_at if run.started_at else 0.0
    return max(statistics.median(took) - elapsed, 0.0)

"""When waiting runs start, and what a run takes before it starts: by the measured speed of other runs."""

import heapq
import statistics
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from training.config.run_config import RunConfig
from training.errors import DataError, Problem
from training.tokens import run_rows
from training.tokens.selection import SetRows
from worker.datasets import run_data
from worker.datasets.run_data import NamedData
from worker.runs.settle import Settled
from worker.store import database, json_parts, runs, waiting
from worker.store.tables import Run, Status
from worker.store.tables.row import whole
from worker.store.tables.same_work import of_model

_ALIKE = 5  # newest runs that count
_LOOKED_AT = 50  # newest runs of which damaged ones are left out
_SAME = ("task", "max_length", "strategy", "num_processes", "gradient_checkpointing")
_NEARLY = ()


class WaitingJob(NamedTuple):
    """A run as the queue sees it: its devices, and the seconds that it still takes (None if unknown)."""

    devices: int
    seconds: float | None


def expected(*, session: Session, devices: int) -> dict[str, float | None]:
    """The seconds until each startable run begins, by id; None where the time of a run ahead of it is unknown.

    `devices` is the number of devices that runs share.
    """
    running = runs.with_status(session=session, status=Status.RUNNING)
    queued = waiting.startable(session=session)
    took, now = _newest_durations(session), database.now(session=session)

    def job(run: Run) -> WaitingJob:
        return _job(run, _seconds_left(run, took.get(run.same_work), run.worked(now) or 0.0))

    times = starts(map(job, running), list(map(job, queued)), devices)
    return dict(zip([run.id for run in queued], times, strict=True))


def starts(running: Iterable[WaitingJob], queued: Sequence[WaitingJob], devices: int) -> list[float | None]:
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


def _job(run: Run, seconds: float | None) -> WaitingJob:
    on_cpu = any(device.endswith("/cpu") for device in run.devices)
    needed = len(run.devices) or int(run.config.get("num_processes", 1))
    return WaitingJob(1 if on_cpu else needed, seconds)


def _seconds_left(run: Run, took: float | None, begun: float) -> float | None:
    """By the run's own speed if it has trained; else what runs alike `took`, less what it has `begun`."""
    if run.seconds_per_step and run.total_steps:
        return max(run.total_steps - run.step, 0) * run.seconds_per_step
    return None if took is None else max(took - begun, 0.0)


def _newest_durations(session: Session) -> dict[str, float]:
    """The median of the seconds that the newest finished runs took, by `same_work`, of all that queued and running runs do.

    Each is found in an index, so that the cost grows neither with the history nor with the length of the queue.
    """
    needed = select(Run.same_work).where(col(Run.status).in_((Status.QUEUED, Status.RUNNING))).distinct().subquery()
    other = aliased(Run)
    alike = select(other.worked_seconds).where(other.same_work == needed.c.same_work, other.status == Status.FINISHED)
    newest = alike.order_by(col(other.id).desc()).limit(1).correlate(needed)
    rows = session.exec(select(needed.c.same_work, *(newest.offset(n).scalar_subquery() for n in range(_ALIKE)))).all()
    took = {work: [seconds for seconds in found if seconds] for work, *found in rows}
    return {work: statistics.median(seconds) for work, seconds in took.items() if seconds}


def training_rows(settled: Settled) -> int | None:
    """The training rows of a run, of prompts their samples; None for files that are too large to count before the start.

    Rows without loss tokens are known only after tokenization and count here.
    """
    sets = _sets(settled)
    try:
        return settled.config.samples_per_prompt * sum(run_rows.counted_rows(settled.config, sets)) if sets else None
    except DataError:
        return None  # the run would be refused


def counted_steps(settled: Settled) -> int | None:
    """The optimizer steps of a run whose data is not tokenized; None where tokens decide, or its files are too large to count."""
    sets = _sets(settled)
    try:
        return run_rows.counted_steps(settled.config, sets) if sets else settled.config.max_steps
    except DataError:
        return None  # the run would be refused


def seconds_per_step(session: Session, config: RunConfig, rows: int | None) -> float | None:
    """The median over the newest runs with the same model and method, scaled to the rows of a step; None without one.

    Runs with the same length, strategy and processes count if there are any.
    """
    for same in (_SAME, _NEARLY):
        if found := _measured(session, config, same):
            return statistics.median(found) * _rows_of_a_step(config, rows)
    return None


def together(jobs: Sequence[tuple[int, float | None]], devices: int) -> float | None:
    """The seconds until the last run ends on that many devices; a job is its processes and seconds. None if one is unknown."""
    if any(seconds is None for _, seconds in jobs):
        return None
    queued = [WaitingJob(min(processes, devices), seconds) for processes, seconds in jobs]
    begins = starts([], queued, devices)
    ends = [begin + (job.seconds or 0.0) for begin, job in zip(begins, queued, strict=True) if begin is not None]
    return max(ends, default=0.0)


def _measured(session: Session, config: RunConfig, same: Sequence[str]) -> list[float]:
    """Seconds per row of the newest runs with the same model, method and `same` settings; damaged ones are left out."""
    values = config.model_dump(mode="json")
    alike = [json_parts.text(Run.config, name) == str(values[name]) for name in same]
    timed = select(Run).where(Run.same_model == of_model(values), col(Run.seconds_per_step).is_not(None), *alike)
    newest = session.exec(timed.order_by(col(Run.id).desc()).limit(_LOOKED_AT))
    return [
        (run.seconds_per_step or 0.0) / _rows_of_a_step(run.asked, (run.plan or {}).get("train_rows"))
        for run in islice(whole(newest), _ALIKE)
    ]


def _rows_of_a_step(config: RunConfig, rows: int | None) -> int:
    """The global batch size, or all rows if they are fewer."""
    return max(min(config.global_batch_size, rows or config.global_batch_size), 1)


def _sets(settled: Settled) -> list[SetRows] | None:
    """The rows of a run's data sets; None if some are not counted before the start."""
    counts = [(item.source.max_rows, _rows(settled.config, item)) for item in settled.data if item.field == "data"]
    sets = [SetRows(rows, max_rows) for max_rows, rows in counts if rows is not None]
    return sets if sets and len(sets) == len(counts) else None


def _rows(config: RunConfig, item: NamedData) -> int | None:
    """The rows of a data set; None if they are not counted before the start."""
    if isinstance(item.data, Problem):
        return None
    try:
        columns = item.source.columns or config.columns
        dataset = run_data.as_dataset(item.data, columns) if isinstance(item.data, Path) else item.data
    except (DataError, OSError):
        return None
    return dataset.rows if dataset else None

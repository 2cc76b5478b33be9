"""The steps and the time of a run before it starts: from its settings, its data and the measured speed of earlier runs."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from sqlmodel import Session, col, select

from training.config.run_config import RunConfig
from training.errors import DataError, Problem
from training.tokens.order import steps_per_epoch
from training.tokens.selection import held_out_count, sliced_rows
from worker.datasets import named_files
from worker.datasets.run_data import NamedData
from worker.runs.settle import Settled
from worker.runs.start_times import Job, starts
from worker.store.tables import Run

_ALIKE = 5
_SAME = ("model", "method", "task", "max_length", "strategy", "num_processes", "gradient_checkpointing")
_NEARLY = ("model", "method")


def training_rows(settled: Settled) -> int | None:
    """The training rows of a run; None for a stream, and for files that are too large to count before the start.

    Rows without loss tokens are known only after tokenization and count here.
    """
    config = settled.config
    counts = [_rows(config, item) for item in settled.data if item.field == "data"]
    if config.streaming or None in counts:
        return None
    rows = sum(filter(None, counts))
    try:
        return rows - (0 if config.validation_data else held_out_count(config.eval_split, rows))
    except DataError:
        return None  # the run would be refused


def total_steps(config: RunConfig, rows: int | None) -> int | None:
    """The optimizer steps of a run on so many training rows; a mixture with weights is counted as one epoch over all rows."""
    if config.max_steps or rows is None:
        return config.max_steps
    processes = max(config.num_processes // config.sequence_parallel_size, 1)
    per_epoch = steps_per_epoch(rows, config.micro_batch_size, config.gradient_accumulation_steps, processes)
    return max(math.ceil(per_epoch * config.epochs), 1)


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
    queued = [Job(min(processes, devices), seconds) for processes, seconds in jobs]
    begins = starts([], queued, devices)
    ends = [begin + (job.seconds or 0.0) for begin, job in zip(begins, queued, strict=True) if begin is not None]
    return max(ends, default=0.0)


def _measured(session: Session, config: RunConfig, same: Sequence[str]) -> list[float]:
    """Seconds per row of the newest runs that have the `same` settings."""
    values = config.model_dump(mode="json")
    alike = [col(Run.config)[name].as_string() == str(values[name]) for name in same]
    wanted = (
        select(Run).where(col(Run.seconds_per_step).is_not(None), *alike).order_by(col(Run.id).desc()).limit(_ALIKE)
    )
    found = []
    for run in session.exec(wanted):
        trained = _rows_of_a_step(RunConfig.model_validate(run.config), (run.plan or {}).get("train_rows"))
        found.append((run.seconds_per_step or 0.0) / trained)
    return found


def _rows_of_a_step(config: RunConfig, rows: int | None) -> int:
    """The global batch size, or all rows if they are fewer."""
    return max(min(config.global_batch_size, rows or config.global_batch_size), 1)


def _rows(config: RunConfig, item: NamedData) -> int | None:
    """The rows of a data set that are used; None if they are not counted before the start."""
    try:
        rows = _all_rows(item, item.source.columns or config.columns)
    except (DataError, OSError):
        return None
    if rows is None:
        return None
    return min([sliced_rows(config.data_slice, rows), *filter(None, (config.max_samples, item.source.max_rows))])


def _all_rows(item: NamedData, columns: str | None) -> int | None:
    if isinstance(item.data, Problem):
        return None
    dataset = named_files.as_dataset(item.data, columns) if isinstance(item.data, Path) else item.data
    return dataset.rows if dataset else None

"""What benchmarks.chaos looks at in the end: what is lost, doubled, left over, and how much of the time was training."""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sqlmodel import col, func, select

from benchmarks.chaos_ranks import DOUBLED_FILE, RESULT_FILE, loss_of, states
from benchmarks.chaos_supervisor import LIGHT
from training import manifest
from training.config import RunConfig
from training.events import CheckpointSaved, Metrics, RankStarted, decode
from worker import database
from worker.archive import ARCHIVE_FILE
from worker.metrics import WHOLE_RUN
from worker.models import Attempt, DeviceLease, Metric, Run, RunEvent, Status
from worker.settings import Settings

Losses = dict[int, float | None]
_UNFINISHED_FILES = ("*.part", "*.tmp")
_END_SECONDS = 20.0  # for processes that were told to end


@dataclass
class Findings:
    """Each a sentence; empty lists are what is wanted. `effective_percent`: of the time between the runs' starts and ends,
    what the steps that count would have taken by their median."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    effective_percent: float = 0.0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.left_over)


def look_at_runs(runs_dir: Path, accepted: set[str], undisturbed: Losses, found: Findings) -> None:
    """Holds every run against one that nothing disturbed. `accepted`: ids that the web server gave out; `undisturbed`: the
    losses of the run that really trains."""
    with database.read() as session:
        everyone = list(session.exec(select(Run).order_by(col(Run.id))))
    found.lost += [f"{run_id}: was accepted and is not there" for run_id in accepted - {run.id for run in everyone}]
    trained, spent = 0.0, 0.0
    for run in everyone:
        folder = runs_dir / run.id
        if run.status is not Status.FINISHED:
            why = f"attempt {run.attempt}, step {run.step} {(run.error or {}).get('message', '')}"
            found.lost.append(f"{run.id} ({run.name}): {run.status.value}, {why}")
            continue
        wanted, state = _expected(run) if run.name.startswith(LIGHT) else (undisturbed, "")
        _look_at_steps(run, folder, wanted, found)
        _look_at_result(run, folder, state, found)
        trained += len(wanted) * _seconds_of_step(folder)
        spent += (run.finished_at or 0) - (run.started_at or 0)
    found.effective_percent = round(100 * trained / spent, 1) if spent else 0.0


def losses(run_id: str) -> Losses:
    """The loss of every step that is stored."""
    series = select(Metric.step, Metric.value).where(
        Metric.run_id == run_id, Metric.name == "loss", Metric.rank == WHOLE_RUN
    )
    with database.read() as session:
        return dict(session.exec(series).all())


def _expected(run: Run) -> tuple[Losses, str]:
    """A light run's losses and its last state."""
    config, state = RunConfig.model_validate(run.config), ""
    wanted: Losses = {}
    for step, state in states(config.seed, 1, config.max_steps or 1):
        wanted[step] = loss_of(state)
    return wanted, state


def _look_at_steps(run: Run, folder: Path, wanted: Losses, found: Findings) -> None:
    kept = losses(run.id)
    missing, more = sorted(wanted.keys() - kept.keys()), sorted(kept.keys() - wanted.keys())
    other = [step for step in wanted if step in kept and kept[step] != wanted[step]]
    if missing or more or other:
        told = f"steps missing {missing[:5]}, too many {more[:5]}, of another loss {other[:5]}"
        found.lost.append(f"{run.id} ({run.name}): {told}")
    if (folder / DOUBLED_FILE).exists():
        found.doubled.append(f"{run.id} ({run.name}): {(folder / DOUBLED_FILE).read_text().strip()}")
    if told := _overlap(folder):
        found.doubled.append(f"{run.id} ({run.name}): {told}")
    stored, written = _checkpoints_told(run.id), sum(isinstance(e, CheckpointSaved) for e in _records(folder))
    if stored != written:
        told = f"{stored} of {written} records of checkpoints are stored"
        (found.doubled if stored > written else found.lost).append(f"{run.id} ({run.name}): {told}")


def _overlap(folder: Path) -> str:
    """Where the records show two trainers at a time: between two starts of rank 0 its steps only rise by one."""
    last: int | None = None
    for record in _records(folder):
        if isinstance(record, RankStarted) and record.rank == 0:
            last = None
        elif isinstance(record, Metrics) and "loss" in record.values:
            if last is not None and record.step != last + 1:
                return f"step {record.step} follows step {last} in one attempt"
            last = record.step
    return ""


def _look_at_result(run: Run, folder: Path, state: str, found: Findings) -> None:
    if not (folder / ARCHIVE_FILE).is_file():
        found.lost.append(f"{run.id} ({run.name}): its result is not packed")
    if state and (folder / "adapter" / RESULT_FILE).read_text() != state:
        found.lost.append(f"{run.id} ({run.name}): its result is not that of an undisturbed run")


def _checkpoints_told(run_id: str) -> int:
    told = select(func.count()).where(RunEvent.run_id == run_id, RunEvent.kind == CheckpointSaved.kind)
    with database.read() as session:
        return session.exec(told).one()


def _seconds_of_step(folder: Path) -> float:
    """The median of the time from one step's record to the next within an attempt."""
    taken, last = [], None
    for record in _records(folder):
        if isinstance(record, RankStarted):
            last = None
        elif isinstance(record, Metrics) and "loss" in record.values:
            taken += [record.time - last] if last is not None else []
            last = record.time
    return statistics.median(taken) if taken else 0.0


def _records(folder: Path) -> list[object]:
    lines = (folder / "events.jsonl").read_bytes().splitlines()
    return [record for record in map(decode, lines) if record is not None]


def look_for_rest(settings: Settings, processes: Callable[[], list[psutil.Process]], found: Findings) -> None:
    """What is left once every service was told to stop: processes, leases of devices, unfinished files."""
    deadline = time.monotonic() + _END_SECONDS
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    found.left_over += [f"process {process.pid}" for process in left]
    with database.read() as session:
        leases = list(session.exec(select(DeviceLease)))
    found.left_over += [f"device {lease.device}, leased by {lease.run_id}" for lease in leases]
    for pattern in _UNFINISHED_FILES:
        found.left_over += [f"file {path.relative_to(settings.data_dir)}" for path in settings.data_dir.rglob(pattern)]
    for run_dir in settings.runs_dir.iterdir():
        found.left_over += [f"half a checkpoint: {run_dir.name}/{half.name}" for half in manifest.unsealed(run_dir)]


def attempts() -> dict[str, int]:
    """How many attempts ended in which way."""
    with database.read() as session:
        return dict(Counter(session.exec(select(Attempt.outcome))))

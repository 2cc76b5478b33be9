"""The final checks of benchmarks.chaos: lost, doubled or leftover work, and effective training time."""

import statistics
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sqlmodel import col, func, select

from benchmarks.chaos.ranks import DOUBLED_FILE, RESULT_FILE, loss_of, states
from benchmarks.chaos.supervisor import LIGHT
from benchmarks.slurm_cluster import SlurmCluster
from training.config.run_config import RunConfig
from training.run_folder import checkpoints as manifest
from training.run_folder.events import CheckpointSaved, Metrics, RankStarted, decode
from training.run_folder.paths import ARCHIVE_FILE, EVENTS_FILE
from worker.settings import Settings
from worker.store import database
from worker.store.metrics import WHOLE_RUN
from worker.store.tables import Attempt, DeviceLease, Metric, Run, RunEvent, Sample, Status

Curves = dict[tuple[str, int], float | None]  # by name and step
_METRICS = ("loss", "reward", "grad_norm")
_UNFINISHED_FILES = ("*.part", "*.tmp")
_END_SECONDS = 20.0  # for processes that received a signal to end


@dataclass
class Findings:
    """Messages about damage; all lists should be empty. `effective_percent` is the time of the steps that count, each at
    its run's median duration, as a percentage of the time between the runs' starts and ends."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    effective_percent: float = 0.0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.left_over)


def check_runs(runs_dir: Path, accepted: set[str], undisturbed: dict[str, Curves], findings: Findings) -> None:
    """Compares every run with an undisturbed one. `accepted` are the ids that the web server returned, `undisturbed` the
    curves of a real training run without faults, by its task."""
    with database.read() as session:
        all_runs = list(session.exec(select(Run).order_by(col(Run.id))))
    findings.lost += [f"{run_id}: was accepted but is missing" for run_id in accepted - {run.id for run in all_runs}]
    trained, spent = 0.0, 0.0
    for run in all_runs:
        folder = runs_dir / run.id
        if run.status is not Status.FINISHED:
            reason = f"attempt {run.attempt}, step {run.step} {(run.error or {}).get('message', '')}"
            findings.lost.append(f"{run.id} ({run.name}): {run.status.value}, {reason}")
            continue
        task = run.config["task"]
        expected, state = _expected(run) if run.name.startswith(LIGHT) else (undisturbed.get(task, {}), "")
        _check_steps(run, folder, expected, findings)
        _check_result(run, folder, state, findings)
        trained += sum(name == "loss" for name, _ in expected) * _seconds_of_step(folder)
        spent += (run.finished_at or 0) - (run.started_at or 0)
    findings.effective_percent = round(100 * trained / spent, 1) if spent else 0.0


def curves(run_id: str) -> Curves:
    """Returns the loss, reward and gradient norm of every stored step, and a checksum of each stored sample's text and score."""
    metrics = select(Metric.name, Metric.step, Metric.value).where(
        Metric.run_id == run_id, col(Metric.name).in_(_METRICS), Metric.rank == WHOLE_RUN
    )
    samples = select(Sample.step, Sample.sample, Sample.text, Sample.reward).where(Sample.run_id == run_id)
    with database.read() as session:
        values: Curves = {(name, step): value for name, step, value in session.exec(metrics)}
        for step, number, text, reward in session.exec(samples):
            values[f"sample {number}", step] = zlib.crc32(f"{text} {reward}".encode())
    return values


def losses(run_id: str) -> dict[int, float | None]:
    """Returns the loss of every stored step."""
    return {step: value for (name, step), value in curves(run_id).items() if name == "loss"}


def _expected(run: Run) -> tuple[Curves, str]:
    """Returns the expected losses and last state of a light run."""
    config, state = RunConfig.model_validate(run.config), ""
    values: Curves = {}
    for step, state in states(config.seed, 1, config.max_steps or 1):
        values["loss", step] = loss_of(state)
    return values, state


def _check_steps(run: Run, folder: Path, expected: Curves, findings: Findings) -> None:
    stored = curves(run.id)
    missing, more = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    other = [key for key in expected if key in stored and stored[key] != expected[key]]
    if missing or more or other:
        message = f"missing steps {missing[:5]}, unexpected steps {more[:5]}, steps with another value {other[:5]}"
        findings.lost.append(f"{run.id} ({run.name}): {message}")
    if (folder / DOUBLED_FILE).exists():
        findings.doubled.append(f"{run.id} ({run.name}): {(folder / DOUBLED_FILE).read_text().strip()}")
    if overlap := _overlap(folder):
        findings.doubled.append(f"{run.id} ({run.name}): {overlap}")
    kept, written = _stored_checkpoints(run.id), sum(isinstance(e, CheckpointSaved) for e in _records(folder))
    if kept != written:
        message = f"{kept} of {written} checkpoint records are stored"
        (findings.doubled if kept > written else findings.lost).append(f"{run.id} ({run.name}): {message}")


def _overlap(folder: Path) -> str:
    """Describes the first place where steps do not increase by one within an attempt, as with two trainers; else empty."""
    last: int | None = None
    for record in _records(folder):
        if isinstance(record, RankStarted) and record.rank == 0:
            last = None
        elif isinstance(record, Metrics) and "loss" in record.values:
            if last is not None and record.step != last + 1:
                return f"step {record.step} follows step {last} in one attempt"
            last = record.step
    return ""


def _check_result(run: Run, folder: Path, state: str, findings: Findings) -> None:
    if not (folder / ARCHIVE_FILE).is_file():
        findings.lost.append(f"{run.id} ({run.name}): its result archive is missing")
    if state and (folder / "adapter" / RESULT_FILE).read_text() != state:
        findings.lost.append(f"{run.id} ({run.name}): its result differs from that of an undisturbed run")


def _stored_checkpoints(run_id: str) -> int:
    query = select(func.count()).where(RunEvent.run_id == run_id, RunEvent.kind == CheckpointSaved.kind)
    with database.read() as session:
        return session.exec(query).one()


def _seconds_of_step(folder: Path) -> float:
    """Returns the median time between the records of two steps within an attempt."""
    durations: list[float] = []
    last: float | None = None
    for record in _records(folder):
        if isinstance(record, RankStarted):
            last = None
        elif isinstance(record, Metrics) and "loss" in record.values:
            durations += [record.time - last] if last is not None else []
            last = record.time
    return statistics.median(durations) if durations else 0.0


def _records(folder: Path) -> list[object]:
    lines = (folder / EVENTS_FILE).read_bytes().splitlines()
    return [record for record in map(decode, lines) if record is not None]


def check_leftovers(settings: Settings, processes: Callable[[], list[psutil.Process]], findings: Findings) -> None:
    """Finds what remains after all services stopped: processes, device leases, unfinished files."""
    deadline = time.monotonic() + _END_SECONDS
    while (remaining := processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    findings.left_over += [f"process {process.pid}" for process in remaining]
    with database.read() as session:
        leases = list(session.exec(select(DeviceLease)))
    findings.left_over += [f"device {lease.device}, leased by {lease.run_id}" for lease in leases]
    for pattern in _UNFINISHED_FILES:
        findings.left_over += [
            f"file {path.relative_to(settings.data_dir)}" for path in settings.data_dir.rglob(pattern)
        ]
    for run_dir in settings.runs_dir.iterdir():
        findings.left_over += [
            f"incomplete checkpoint: {run_dir.name}/{folder.name}" for folder in manifest.unsealed(run_dir)
        ]


def check_jobs(cluster: SlurmCluster | None, findings: Findings) -> None:
    """Finds jobs that remain in Slurm's queue after all runs have ended."""
    deadline = time.monotonic() + _END_SECONDS
    while cluster is not None and (listed := cluster.call("squeue", "--noheader", "--format=%i %T %j").splitlines()):
        if time.monotonic() > deadline:
            findings.left_over += [f"job {line}" for line in listed]
            return
        cluster.keep_running()
        time.sleep(0.5)


def attempts() -> dict[str, int]:
    """Returns the number of attempts by outcome."""
    with database.read() as session:
        return dict(Counter(session.exec(select(Attempt.outcome))))

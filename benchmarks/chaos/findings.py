"""The final checks of benchmarks.chaos: lost, doubled, leftover, different or misnamed work, and effective training time."""

import json
import re
import statistics
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sqlmodel import Session, col, func, select

from benchmarks.chaos.kinds import LIGHT, kind_of
from benchmarks.chaos.ranks import DOUBLED_FILE, RESULT_FILE, loss_of, states
from benchmarks.slurm_cluster import SlurmCluster
from tests.stand_in_hub import Received
from training.config.run_config import RunConfig
from training.run_folder import checkpoints as manifest
from training.run_folder.events import CheckpointSaved, Metrics, RankStarted, decode
from training.run_folder.paths import (
    ARCHIVE_FILE,
    EVENTS_FILE,
    MERGED_FOLDER,
    PARITY_FILE,
    PARITY_FOLDER,
    UNFINISHED_FOLDER,
)
from worker.settings import Settings
from worker.store import database
from worker.store.metrics import WHOLE_RUN
from worker.store.tables import (
    Attempt,
    Build,
    DeviceLease,
    Evaluation,
    Metric,
    Run,
    RunEvent,
    Sample,
    ServedModel,
    ServedState,
    Status,
)
from worker.store.tables.queued import QueuedWork
from worker.store.tables.row import Row

Curves = dict[tuple[str, int], float | None]  # by name and step
_METRICS = ("loss", "reward", "grad_norm")
_UNFINISHED_FILES = ("*.part", "*.tmp", "*.partial", f"{UNFINISHED_FOLDER}/*")
_SIGKILL = "killed by SIGKILL"
_OUT_OF_MEMORY = re.compile("out of memory", re.I)
_END_SECONDS = 20.0  # for processes that received a signal to end


@dataclass
class Findings:
    """Messages about damage; all lists should be empty.

    `lost`: what was accepted and is missing, did not finish, or has no whole result. `different`: numbers or files other than those
    of an undisturbed run. `misnamed`: causes that are not the real ones. `hanging`: work that does not end. `effective_percent` is
    the time of the steps that count, each at its run's median duration, as a percentage of the time between the runs' starts and
    ends.
    """

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    misnamed: list[str] = field(default_factory=list)
    hanging: list[str] = field(default_factory=list)
    effective_percent: float = 0.0

    @property
    def damage(self) -> dict[str, list[str]]:
        """The messages of each kind."""
        return {name: value for name, value in vars(self).items() if isinstance(value, list)}

    @property
    def clean(self) -> bool:
        return not any(self.damage.values())


def check_runs(runs_dir: Path, accepted: set[str], undisturbed: dict[str, str], findings: Findings) -> None:
    """Compares every run with an undisturbed one. `accepted` are the ids that the web server returned, `undisturbed` those of the
    runs without faults, by kind."""
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
        like = undisturbed.get(kind_of(run.name), "")
        expected, state = _expected(run) if kind_of(run.name) == LIGHT else (curves(like), "")
        _check_steps(run, folder, expected, findings)
        _check_result(run, folder, state, findings)
        if like:
            _check_files(run, folder, runs_dir / like, findings)
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
    if missing or more:
        findings.lost.append(f"{run.id} ({run.name}): missing steps {missing[:5]}, unexpected steps {more[:5]}")
    if other:
        findings.different.append(f"{run.id} ({run.name}): steps with another value {other[:5]}")
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
    archive = folder / ARCHIVE_FILE
    if not archive.is_file():
        findings.lost.append(f"{run.id} ({run.name}): its result archive is missing")
    elif not zipfile.is_zipfile(archive) or zipfile.ZipFile(archive).testzip():
        findings.lost.append(f"{run.id} ({run.name}): its result archive is damaged")
    if state and (folder / "adapter" / RESULT_FILE).read_text() != state:
        findings.different.append(f"{run.id} ({run.name}): its result differs from that of an undisturbed run")


def _check_files(run: Run, folder: Path, undisturbed: Path, findings: Findings) -> None:
    """Compares the weights that a real run saved, and what the comparison of these with the trained model showed."""
    saved = ["adapter", PARITY_FOLDER, *([MERGED_FOLDER] if run.config["merge_adapter"] else [])]
    for path in sorted(path for name in saved for path in (undisturbed / name).glob("*.safetensors")):
        mine = folder / path.relative_to(undisturbed)
        if not mine.is_file():
            findings.lost.append(f"{run.id} ({run.name}): {mine.relative_to(folder)} is missing")
        elif mine.read_bytes() != path.read_bytes():
            findings.different.append(f"{run.id} ({run.name}): {mine.relative_to(folder)} differs")
    if (undisturbed / PARITY_FILE).is_file() and not (folder / PARITY_FILE).is_file():
        findings.lost.append(f"{run.id} ({run.name}): was not verified")


def check_uploads(runs_dir: Path, hub: Received, findings: Findings) -> None:
    """Compares what runs pushed to the hub with their results."""
    with database.read() as session:
        finished = list(session.exec(select(Run).where(Run.status == Status.FINISHED).order_by(col(Run.id))))
    for run in finished:
        if not (repository := run.config.get("push_to_hub")):
            continue
        pushed = hub.repositories.get(repository, {})
        for path in (runs_dir / run.id / "adapter").glob("*.safetensors"):
            if path.name not in pushed:
                findings.lost.append(f"{run.id} ({run.name}): {path.name} was not pushed")
            elif pushed[path.name] != path.read_bytes():
                findings.different.append(f"{run.id} ({run.name}): the {path.name} that was pushed differs")


def check_causes(killed: set[tuple[str, int]], everything: list[float], findings: Findings) -> None:
    """Finds causes that are not the real ones: nothing was out of memory, and a SIGKILL was one of the session's or is named as
    Lathe's. `killed` are the attempts (run and number) of which the session killed a process, `everything` the times when all.
    """
    with database.read() as session:
        for attempt in session.exec(select(Attempt).order_by(col(Attempt.run_id))):
            named = f"{attempt.run_id}, attempt {attempt.number}"
            ended = attempt.ended_at or time.time()
            by_us = (attempt.run_id, attempt.number) in killed
            by_us = by_us or any(attempt.started_at - 1 <= at <= ended + 1 for at in everything)
            if _SIGKILL in attempt.reason and not by_us:
                findings.misnamed.append(f"{named}: {attempt.reason} (the session killed no process of it)")
        for row in _reasons(session):
            findings.misnamed += [f"{row.named}: {text}" for text in _texts(row) if _OUT_OF_MEMORY.search(text)]


def _reasons(session: Session) -> Iterator[Row]:
    for table in (Run, Attempt, Evaluation, Build, ServedModel, RunEvent):
        yield from session.exec(select(table))


def _texts(row: Row) -> Iterator[str]:
    """What a row says about causes."""
    error = getattr(row, "error", None) or {}
    for text in (getattr(row, "reason", ""), getattr(row, "message", ""), error.get("message"), error.get("fix")):
        if text:
            yield str(text)


def check_work(findings: Findings) -> None:
    """Finds evaluations and builds that failed or did not end, and evaluations of equal models with unequal scores."""
    scores: dict[str, str] = {}
    with database.read() as session:
        names = {run.id: run.name for run in session.exec(select(Run))}
        rows: list[QueuedWork] = [row for table in (Evaluation, Build) for row in session.exec(select(table))]
    for row in rows:
        if row.status in (Status.QUEUED, Status.RUNNING):
            findings.hanging.append(f"{row.named}: {row.status.value}, {row.phase}")
        elif row.status is not Status.FINISHED:
            findings.lost.append(f"{row.named}: {row.status.value}, {(row.error or {}).get('message', row.reason)}")
        elif isinstance(row, Evaluation):
            name, means = names[row.run_id], json.dumps((row.summary or {}).get("metrics"), sort_keys=True)
            if (first := scores.setdefault(kind_of(name), means)) != means:
                findings.different.append(f"{row.named} of {name}: {means} in place of {first}")


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
        served = list(session.exec(select(ServedModel).where(ServedModel.state != ServedState.ENDED)))
    findings.left_over += [f"device {lease.device}, leased by {lease.run_id}" for lease in leases]
    findings.left_over += [f"{row.named}: {row.state.value}" for row in served]
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

"""The diagnosis of a run, stored with its error or computed from its log, and the cause of its failure in one sentence."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.errors import NothingToLearn
from training.model_info.config_json import Dimensions, ModelError, read_dimensions
from training.run_folder.memory_words import MEMORY_LIMIT
from worker.diagnosis.comparison import different_settings, new_lines
from worker.diagnosis.diagnosis import Diagnosis, diagnose
from worker.diagnosis.log_file import Excerpt, read_log
from worker.store import database, history, runs
from worker.store.tables import Status
from worker.supervision.outcome import Verdict
from worker.supervision.report_reader import AttemptProgress

_MOST_LINES = 5000
_MOST_COMPARED = 200  # finished runs, the newest
_COMPARED = ("model", "data", "task", "method", "strategy")
DIVERGED = (
    "Training diverged",
    "The loss is NaN or infinite.",
    "Lower the learning rate or lengthen the warmup.",
)


def of_run(run_id: str, *, dimensions: Dimensions | None = None, micro_batch: int | None = None) -> dict[str, Any]:
    """The diagnosis of a run as JSON (`Diagnosis.document`), with `compared`: the run beside one that finished.

    It is the stored one, unless `dimensions` or `micro_batch` are given.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        stored = (run.error or {}).get("diagnosis")
        if stored and dimensions is None and micro_batch is None:
            return dict(stored) | {"compared": compared(run_id)}
        lines = [line.text for line in history.log_tail(session=session, run_id=run.id, limit=_MOST_LINES)]
        trace = str((run.error or {}).get("traceback") or "")
        text = "\n".join([*lines, *([] if trace in "\n".join(lines) else trace.splitlines())])
        config, stepped = dict(run.config), dict(run.stepped_down)
    dimensions = dimensions or model_dimensions(config)
    found = diagnose(text, dimensions=dimensions, micro_batch=micro_batch, config=config | stepped)
    return _beside(found, stepped).document() | {"compared": compared(run_id)}


def compared(run_id: str) -> dict[str, Any] | None:
    """The failed run beside the last finished one that is most like it: the same data, model and strategy, or some of them.

    None if the run has not failed, or no finished run shares its model or its data.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        if run.status is not Status.FAILED:
            return None
        finished = runs.with_status(session=session, status=Status.FINISHED, limit=_MOST_COMPARED)
        alike = [(_shared(run.config, other.config), other) for other in finished]
        shared, best = max(alike, key=lambda one: len(one[0]), default=([], None))
        if best is None or not {"model", "data"} & set(shared):
            return None
        failed, good = (
            [line.text for line in history.log_tail(session=session, run_id=one.id, limit=_MOST_LINES)]
            for one in (run, best)
        )
        settings = different_settings(run.settings, best.settings)
        return {
            "run": best.id,
            "name": best.name,
            "shared": shared,
            "settings": {name: list(values) for name, values in settings.items()},
            "lines": new_lines(failed, good),
        }


def _shared(config: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in _COMPARED if config.get(name) and config.get(name) == other.get(name)]


def explained(
    verdict: Verdict, seen: AttemptProgress, config: dict[str, Any], stepped: dict[str, Any], log: Path, begin: int
) -> Verdict:
    """Adds the diagnosis of an attempt's output (`log` from the byte `begin` on) to its verdict.

    `config` is the run's as submitted, `stepped` the settings changed after earlier out-of-memory errors. Nothing is added if the
    training program reported an error that the user can fix, or if no error is found.
    """
    expected = any(failure.expected for failure in seen.failures)
    if verdict.status is not Status.FAILED or verdict.error is None or expected:
        return verdict
    found = diagnose(_output(seen, log, begin), dimensions=model_dimensions(config), config=config | stepped)
    if not found.evidence:
        return verdict
    if found.changes and verdict.error.get("step_down"):  # the ladder also knows the GPU and the batch
        found = replace(found, changes=dict(verdict.error["step_down"]))
    found = _beside(found, stepped)
    if found.first_failed_rank is None and seen.failures:
        found = replace(found, first_failed_rank=seen.failures[0].rank)
    return replace(verdict, error=verdict.error | {"diagnosis": found.document()})


def _beside(found: Diagnosis, stepped: dict[str, Any]) -> Diagnosis:
    """The diagnosis with changes relative to the submitted settings: earlier changes are included."""
    return replace(found, changes=stepped | found.changes) if found.changes else found


def _output(seen: AttemptProgress, log: Path, begin: int) -> list[Excerpt]:
    """The output of an attempt; if that has no traceback, also those that its ranks reported."""
    try:
        with log.open("rb") as stream:
            stream.seek(begin)
            parts = read_log(stream)
    except OSError:
        parts = []
    if any("Traceback" in part.text for part in parts):
        return parts
    lines = [f"[rank{failure.rank}]: {line}" for failure in seen.failures for line in failure.traceback.splitlines()]
    return [*parts, Excerpt(1, "\n".join(lines))]


def model_dimensions(config: dict[str, Any]) -> Dimensions | None:
    """The dimensions of a run's model; None if it is not a folder on this machine."""
    try:
        return read_dimensions(str(config.get("model") or ""))
    except ModelError:  # they are optional
        return None


@dataclass(frozen=True)
class FailureCause:
    """`changes`: settings that the diagnosis proposes for a new run, mostly empty."""

    title: str
    message: str
    fix: str
    changes: dict[str, Any]


def failure_cause(error: dict[str, Any], report: dict[str, Any] | None, *, proposed: bool = False) -> FailureCause:
    """The cause from the ranks' memory report if there is one, then from the diagnosis, then from the error itself.

    `error` is that of the run, `report` the out-of-memory report of its last attempt. `proposed`: the caller offers to resume
    with settings that need less memory.
    """
    message, fix = str(error.get("message") or "The run failed."), str(error.get("fix") or "")
    if proposed:
        return FailureCause(_memory_title(report, message), message, "The global batch size stays the same.", {})
    if report:
        return FailureCause(_memory_title(report, message), message, fix, {})
    if diagnosis := error.get("diagnosis"):
        explanation = str(diagnosis["explanation"]).removeprefix(diagnosis["title"]).strip() or message
        first = next(iter(diagnosis["fix"]), fix)
        return FailureCause(str(diagnosis["title"]).rstrip("."), explanation, first, dict(diagnosis["changes"]))
    if error.get("error") == NothingToLearn.__name__:
        return FailureCause("Nothing to learn", message, fix, {})
    phase, rank = error.get("phase"), error.get("rank")
    where = f" while {phase}" if phase else ""
    return FailureCause(f"Failed{where}{'' if rank is None else f' on rank {rank}'}", message, fix, {})


def _memory_title(report: dict[str, Any] | None, message: str) -> str:
    """GPU memory or a memory limit, by the device that the rank reported."""
    if report is None:
        return message.partition(" on rank")[0].partition(".")[0]
    return "Out of GPU memory" if report.get("device") == "cuda" else MEMORY_LIMIT

"""The diagnosis of a run of Lathe: kept with its error when it failed, or made of the log that the database has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from training.model_files import ModelError
from worker import database, logs, runs
from worker.diagnosis import Diagnosis, diagnose
from worker.log_file import Excerpt, read_log
from worker.model_dimensions import Dimensions, read_dimensions
from worker.models import Status
from worker.outcome import Verdict
from worker.reports import Seen

_MOST_LINES = 5000


def of_run(run_id: str, *, shape: Dimensions | None = None, micro_batch: int | None = None) -> dict[str, Any]:
    """The diagnosis of a run as a JSON value (`Diagnosis.document`): as it was kept, unless more is known now.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        kept = (run.error or {}).get("diagnosis")
        if kept and shape is None and micro_batch is None:
            return dict(kept)
        lines = [line.text for line in logs.tail(session=session, run_id=run.id, limit=_MOST_LINES)]
        trace = str((run.error or {}).get("traceback") or "")
        text = "\n".join([*lines, *([] if trace in "\n".join(lines) else trace.splitlines())])
        config, stepped = dict(run.config), dict(run.stepped_down)
    shape = shape or dimensions(config)
    found = diagnose(text, shape=shape, micro_batch=micro_batch, config=config | stepped)
    return _beside(found, stepped).document()


def explained(
    verdict: Verdict, seen: Seen, config: dict[str, Any], stepped: dict[str, Any], log: Path, begin: int
) -> Verdict:
    """The verdict on an attempt with the diagnosis of what it printed into `log`, from the byte `begin` on.

    `config` is the run's as it was asked for, `stepped` what took the place of some of it when memory ran out before.
    Nothing is added where the trainer itself said what a person has to mend, or where no error is found.
    """
    expected = any(failure.expected for failure in seen.failures)
    if verdict.status is not Status.FAILED or verdict.error is None or expected:
        return verdict
    found = diagnose(_told(seen, log, begin), shape=dimensions(config), config=config | stepped)
    if not found.evidence:
        return verdict
    found = _beside(found, stepped)
    if found.first_failed_rank is None and seen.failures:
        found = replace(found, first_failed_rank=seen.failures[0].rank)
    return replace(verdict, error=verdict.error | {"diagnosis": found.document()})


def _beside(found: Diagnosis, stepped: dict[str, Any]) -> Diagnosis:
    """The diagnosis whose changes are those to the settings as asked for: what took their place already comes along."""
    return replace(found, changes=stepped | found.changes) if found.changes else found


def _told(seen: Seen, log: Path, begin: int) -> list[Excerpt]:
    """What an attempt printed; where that holds no traceback, those that its ranks reported."""
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


def dimensions(config: dict[str, Any]) -> Dimensions | None:
    """The dimensions of a run's model where it is a folder of this machine."""
    try:
        return read_dimensions(str(config.get("model") or ""))
    except ModelError:  # it only would have told more
        return None

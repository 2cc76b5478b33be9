"""The diagnosis of one of Lathe's runs: stored with its error, or computed from the log in the database."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from training.model_info.config_json import ModelError
from training.model_info.dimensions import Dimensions, read_dimensions
from worker.diagnosis.diagnosis import Diagnosis, diagnose
from worker.diagnosis.log_file import Excerpt, read_log
from worker.store import database, logs, runs
from worker.store.tables import Status
from worker.supervision.outcome import Verdict
from worker.supervision.report_reader import AttemptProgress

_MOST_LINES = 5000


def of_run(run_id: str, *, dimensions: Dimensions | None = None, micro_batch: int | None = None) -> dict[str, Any]:
    """The diagnosis of a run as JSON (`Diagnosis.document`): the stored one, unless `dimensions` or `micro_batch` are given.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        stored = (run.error or {}).get("diagnosis")
        if stored and dimensions is None and micro_batch is None:
            return dict(stored)
        lines = [line.text for line in logs.tail(session=session, run_id=run.id, limit=_MOST_LINES)]
        trace = str((run.error or {}).get("traceback") or "")
        text = "\n".join([*lines, *([] if trace in "\n".join(lines) else trace.splitlines())])
        config, stepped = dict(run.config), dict(run.stepped_down)
    dimensions = dimensions or model_dimensions(config)
    found = diagnose(text, dimensions=dimensions, micro_batch=micro_batch, config=config | stepped)
    return _beside(found, stepped).document()


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

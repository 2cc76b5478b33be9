"""The diagnosis of a run of Lathe: kept with its error when it failed, or made of the log that the database has."""

from pathlib import Path
from typing import Any

from training.model_files import ModelError
from worker import database, logs, runs
from worker.diagnosis import Diagnosis, diagnose
from worker.log_file import Excerpt, read_log
from worker.model_dimensions import Dimensions, read_dimensions
from worker.models import Run
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
        config = dict(run.config)
    shape = shape or dimensions(config)
    return diagnose(text, shape=shape, micro_batch=micro_batch, config=config).document()


def of_attempt(run: Run, log: Path, seen: Seen) -> Diagnosis:
    """The diagnosis of an attempt that has just ended, from what it printed and the tracebacks that its ranks reported."""
    with log.open("rb") as stream:
        stream.seek(run.log_offset)
        parts = read_log(stream)
    reported = [f"[rank{one.rank}]: {line}" for one in seen.failures for line in one.traceback.splitlines()]
    printed = any("Traceback" in part.text for part in parts)
    parts += [] if printed else [Excerpt(1, "\n".join(reported))]
    return diagnose(parts, shape=dimensions(run.config), config=run.config)


def dimensions(config: dict[str, Any]) -> Dimensions | None:
    """The dimensions of a run's model where it is a folder of this machine."""
    try:
        return read_dimensions(str(config.get("model") or ""))
    except (ModelError, OSError, ValueError, RuntimeError):  # it only would have told more
        return None

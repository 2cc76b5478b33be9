"""`lathe diagnose`: why a training run failed, from its log, whoever made it."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from app import text
from app.cli_errors import CommandError
from worker.diagnosis import Diagnosis, diagnose
from worker.log_file import Excerpt, read_log
from worker.model_dimensions import Dimensions, read_dimensions

STDIN = "-"


def diagnosis(
    log: str | None, *, run_id: str | None, model: str | None, micro_batch: int | None, as_json: bool
) -> None:
    """Prints the diagnosis of a log file, of standard input (-), or of a run.

    Raises:
        CommandError: neither a log nor a run is given, or both, or the log cannot be read.
        ModelError: `model` is neither a model's folder nor a config.json.
        RunNotFound: no run has this id.
    """
    if (log is None) == (run_id is None):
        raise CommandError("Either a log or a run is wanted.", "Give LOG, or --run RUN.", field="LOG", value=log)
    shape = read_dimensions(model) if model else None
    found = _of_run(run_id, shape, micro_batch) if run_id else _of_log(_read(log or STDIN), shape, micro_batch)
    click.echo(json.dumps(found) if as_json else told(found))


def told(found: dict[str, Any]) -> str:
    """A diagnosis as a few lines."""
    rank = found["first_failed_rank"]
    head = [("Cause", found["cause"]), ("Confidence", text.percent(found["confidence"], 0))]
    head += [] if rank is None else [("First failed rank", str(rank))]
    numbered = zip(found["evidence_lines"], found["evidence"], strict=True)
    parts = [found["explanation"], text.pairs(head)]
    parts += _list("Evidence", [f"line {number}: {text.shorten(line, 400)}" for number, line in numbered])
    parts += _list("Fix", found["fix"])
    parts += _list("Settings", [f"{name}: {json.dumps(value)}" for name, value in found["changes"].items()])
    return "\n\n".join(parts)


def _list(heading: str, items: list[str]) -> list[str]:
    return [f"{heading}\n" + "\n".join(f"  - {item}" for item in items)] if items else []


def _of_log(parts: list[Excerpt], shape: Dimensions | None, micro_batch: int | None) -> dict[str, Any]:
    found: Diagnosis = diagnose(parts, shape=shape, micro_batch=micro_batch)
    return found.document()


def _of_run(run_id: str, shape: Dimensions | None, micro_batch: int | None) -> dict[str, Any]:
    from app.cli_database import ready
    from worker import run_diagnosis

    ready()
    return run_diagnosis.of_run(run_id, shape=shape, micro_batch=micro_batch)


def _read(log: str) -> list[Excerpt]:
    if log == STDIN:
        return read_log(sys.stdin.buffer)
    try:
        with Path(log).open("rb") as stream:
            return read_log(stream)
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError(
            f"{reason}.", "Give the log's path, or - for standard input.", field="LOG", value=log
        ) from None

"""`lathe diagnose`: why a training run failed, from the log of any training program."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from app.cli.client import connect, path_of
from app.cli.options import CommandError
from app.format import numbers
from training.model_info.config_json import read_dimensions
from worker.diagnosis.diagnosis import Diagnosis, diagnose
from worker.diagnosis.log_file import Excerpt, read_log

STDIN = "-"


def diagnosis(
    log: str | None, *, run_id: str | None, model: str | None, micro_batch: int | None, as_json: bool
) -> None:
    """Prints the diagnosis of a log file, of standard input (-), or of a run."""
    if (log is None) == (run_id is None):
        raise CommandError("LOG", log, "expected either a log or a run.", "Give LOG or --run RUN.")
    document = _of_run(run_id, model, micro_batch) if run_id else _of_log(_read(log or STDIN), model, micro_batch)
    click.echo(json.dumps(document) if as_json else page(document))


def page(document: dict[str, Any]) -> str:
    """A diagnosis as text."""
    rank = document["first_failed_rank"]
    head = [("Cause", document["cause"]), ("Confidence", numbers.percent(document["confidence"], 0))]
    head += [] if rank is None else [("First rank to fail", str(rank))]
    numbered = zip(document["evidence_lines"], document["evidence"], strict=True)
    parts = [document["explanation"], numbers.pairs(head)]
    parts += _list("Evidence", [f"line {number}: {numbers.shorten(line, 400)}" for number, line in numbered])
    parts += _list("Fix", document["fix"])
    parts += _list("Settings", [f"{name}: {json.dumps(value)}" for name, value in document["changes"].items()])
    return "\n\n".join([*parts, *_comparison(document.get("compared"))])


def _comparison(compared: dict[str, Any] | None) -> list[str]:
    """What differs from a finished run, as a list."""
    if compared is None:
        return []
    differing = compared["settings"].items()
    items = [f"{name}: {json.dumps(now)} instead of {json.dumps(before)}" for name, (before, now) in differing]
    items += [f"new line: {numbers.shorten(line, 400)}" for line in compared["lines"]]
    return _list(f"Different from run {compared['run']} ({compared['name']}), which finished", items)


def _list(heading: str, items: list[str]) -> list[str]:
    return [f"{heading}\n" + "\n".join(f"  - {item}" for item in items)] if items else []


def _of_log(parts: list[Excerpt], model: str | None, micro_batch: int | None) -> dict[str, Any]:
    shape = read_dimensions(model) if model else None
    diagnosis: Diagnosis = diagnose(parts, dimensions=shape, micro_batch=micro_batch)
    return diagnosis.document()


def _of_run(run_id: str, model: str | None, micro_batch: int | None) -> dict[str, Any]:
    return dict(connect().get(path_of("runs", run_id, "/diagnosis"), model=model, micro_batch=micro_batch))


def _read(log: str) -> list[Excerpt]:
    if log == STDIN:
        return read_log(sys.stdin.buffer)
    try:
        with Path(log).open("rb") as stream:
            return read_log(stream)
    except (OSError, ValueError) as error:  # ValueError: an invalid path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError("LOG", log, f"{reason}.", "Give the log's path, or - for standard input.") from None

"""`lathe runs` and `lathe show`: what the database knows of runs, for people or as JSON."""

import json
import time
from typing import Any

import click

from app import text
from app.cli_database import ready
from app.cli_settings import plain
from app.run_document import brief, document
from app.run_words import exact_match, progress, scores, strategy, took
from training.events import OutOfMemory
from training.step_down import in_words
from worker import database, overload, runs
from worker.memory_words import facts
from worker.models import Status

EVENTS_SHOWN = 12
LOG_SHOWN = 15


def listing(status: str | None, search: str, limit: int, *, as_json: bool) -> None:
    """Prints the runs, newest first."""
    ready()
    with database.read() as session:
        found = runs.listing(session=session, status=Status(status) if status else None, search=search, limit=limit)
        rows = [brief(run) for run in found]
    if as_json:
        click.echo(json.dumps(rows))
    elif rows:
        click.echo(listing_table(rows, time.time()))
        if any(run.status is Status.QUEUED for run in found) and (told := overload.in_words()):
            click.echo(told, err=True)
    else:
        click.echo(_nothing_found(filtered=bool(status or search)))


def show(run_id: str, *, as_json: bool) -> None:
    """Prints one run.

    Raises:
        RunNotFound: no run has this id.
    """
    ready()
    with database.read() as session:
        values = document(session, run_id)
    click.echo(json.dumps(values) if as_json else page(values, time.time()))


def listing_table(rows: list[dict[str, Any]], now: float) -> str:
    """The runs as aligned columns; `now` in epoch seconds, for those that are still going."""
    heading = ["RUN", "STATUS", "NAME", "PROGRESS", "LOSS", "BEST EVAL", "PEAK MEMORY", "TOOK", "QUEUED"]
    return text.table([heading, *[_row(row, now) for row in rows]], right=frozenset({4, 5, 6, 7}))


def _row(row: dict[str, Any], now: float) -> list[str]:
    return [
        row["id"],
        row["status"],
        text.shorten(row["name"], 40),
        progress(row),
        "diverged" if row["diverged"] else text.decimal(row["final_loss"]),
        text.decimal(row["best_loss"]),
        text.byte_size(row["peak_bytes"]),
        text.duration(took(row, now)),
        text.when(row["queued_at"]),
    ]


def page(values: dict[str, Any], now: float) -> str:
    """One run as a readable page."""
    parts = [values["name"], text.pairs(_standing(values, now))]
    for heading, body in (
        ("Results", results(values)),
        ("What went wrong", failure(values["error"])),
        ("Attempts", _attempts(values["attempts"])),
        ("Configuration", _configuration(values["config"])),
        ("Data, SHA-256", list(values["fingerprints"].items())),
        ("Events", _events(values["events"])),
    ):
        if body:
            parts += ["", heading, text.pairs(body)]
    return "\n".join(parts)


def _standing(values: dict[str, Any], now: float) -> list[tuple[str, str]]:
    asked = f", asked to {values['request']}" if values["request"] else ""
    phase = f" ({values['phase']})" if values["status"] == "running" and values["phase"] else ""
    lines = [
        ("Run", values["id"]),
        ("Status", f"{values['status']}{phase}{asked}"),
        ("Progress", progress(values)),
        ("Attempts", str(values["attempt"])),
        ("Queued", text.when(values["queued_at"])),
        ("Started", text.when(values["started_at"])),
        ("Ended", text.when(values["finished_at"])),
        ("Took", text.duration(took(values, now))),
        ("Devices", ", ".join(values["devices"]) or text.NONE),
        ("Strategy", strategy(values)),
    ]
    return [(label, told) for label, told in lines if told != text.NONE]


def results(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary's numbers with their units; empty while there is none."""
    summary = values["summary"]
    if not summary:
        return []
    trained = f"{text.count(summary.get('trainable_parameters'))} of {text.count(summary.get('total_parameters'))}"
    speed = [text.rate(summary.get(f"{noun}_per_second"), noun) for noun in ("tokens", "samples")]
    lines = [
        ("Held-out exact match", exact_match(summary.get("answers"))),
        *[(f"Held-out {label}", told) for label, told in scores(summary.get("answers"))],
        ("Final loss", text.decimal(summary.get("final_loss"))),
        ("Evaluation loss", text.decimal(summary.get("eval_loss"))),
        ("Perplexity, held out", text.decimal(summary.get("eval_perplexity"))),
        ("Trained parameters", f"{trained} ({_four_places(summary.get('trainable_percent'))})"),
        ("Adapter size", text.byte_size(summary.get("adapter_bytes"))),
        ("Speed", ", ".join(speed)),
        *_memory(summary.get("memory") or {}),
        ("Predicted peak", text.byte_size((values["forecast"] or {}).get("allocated_bytes"))),
        ("Training time", text.duration(summary.get("train_seconds"))),
    ]
    return [(label, told) for label, told in lines if told != text.NONE]


def _memory(memory: dict[str, list[int | None]]) -> list[tuple[str, str]]:
    labels = {"before": "Memory before training", "after": "Memory after training", "peak": "Peak memory"}
    return [(label, _per_rank(memory[f"{key}_bytes"])) for key, label in labels.items() if memory.get(f"{key}_bytes")]


def _per_rank(sizes: list[int | None]) -> str:
    if len(sizes) == 1:
        return text.byte_size(sizes[0])
    return ", ".join(f"rank {rank}: {text.byte_size(size)}" for rank, size in enumerate(sizes))


def _four_places(percent: float | None) -> str:
    return text.NONE if percent is None else f"{percent:.4f}%"


def failure(error: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What ended a run: the message, the fix, where, the cause, and the end of its traceback or log. Empty where nothing did."""
    if not error:
        return []
    labels = {"message": "Error", "fix": "Fix", "phase": "Phase", "rank": "Rank"}
    lines = [(label, str(error[key])) for key, label in labels.items() if error.get(key) not in (None, "")]
    if found := error.get("diagnosis"):
        lines.append(("Cause", f"{found['explanation']} ({found['cause']})"))
        lines += [("Fix", "\n".join(found["fix"]))] if found["fix"] and not error.get("fix") else []
    for key, label in (("traceback", "Traceback"), ("log_tail", "Log")):
        if end := str(error.get(key) or "").rstrip():
            return [*lines, (label, "\n".join(end.splitlines()[-LOG_SHOWN:]))]
    return lines


def _attempts(attempts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each start with its settings, how it ended, and what its memory was full of where that ran out."""
    if len(attempts) < 2 and not any(one["out_of_memory"] for one in attempts):
        return []
    lines: list[tuple[str, str]] = []
    for one in attempts:
        settings = f"with {in_words(one['stepped_down'])}" if one["stepped_down"] else "as asked"
        lines.append((str(one["number"]), f"{settings}: {one['outcome'] or 'under way'}. {one['reason']}".strip()))
        if one["out_of_memory"]:
            lines += facts(OutOfMemory(**one["out_of_memory"]))
    return lines


def _configuration(config: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, plain(value)) for name, value in config.items() if value is not None and value != ""]


def _events(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    hidden = len(events) - EVENTS_SHOWN
    earlier = [("", f"{text.plural(hidden, 'earlier event')}: --json has all")] if hidden > 0 else []
    return earlier + [(text.when(event["time"]), _event(event)) for event in events[-EVENTS_SHOWN:]]


def _event(event: dict[str, Any]) -> str:
    level = "" if event["level"] == "info" else f"{event['level']}: "
    return f"{level}{event['message']}"


def _nothing_found(*, filtered: bool) -> str:
    if filtered:
        return "No run matches."
    return "No runs yet. Queue one with `lathe run CONFIG.yaml`."

"""`lathe runs`, `lathe show`, `lathe compare` and `lathe logs`: runs and their logs as text or JSON."""

import json
import time
from typing import Any

import click

from app.cli.client import connect, path_of
from app.format import numbers
from app.format.dataset_text import data_words
from app.format.numbers import plain
from app.format.run_text import (
    DIFFERS,
    change,
    evaluation,
    exact_match,
    missing,
    progress,
    result_noun,
    scores,
    strategy,
    took,
)
from training.config.data_sets import FIELDS
from training.config.fields import in_words
from training.run_folder.evaluated import evaluated
from training.run_folder.events import OutOfMemory
from training.run_folder.memory_words import facts
from training.units import NONE, byte_size
from worker.machine import overload
from worker.store.tables import Status

EVENTS_SHOWN = 12
LOG_SHOWN = 15

POLL_SECONDS = 1.0


def listing(status: str | None, search: str, group: str, limit: int, *, as_json: bool) -> None:
    """Prints the runs, newest first, or with `group` by what is the same in them."""
    client = connect()
    pages = list(client.answers("/api/runs", "runs", limit, status=status, search=search, group=group))
    rows = [row for page in pages for row in page["runs"]]
    values = {run_id: one["value"] for page in pages for one in page.get("groups", []) for run_id in one["runs"]}
    if group:
        rows = [row | {"group": values[row["id"]]} for row in rows]
    if as_json:
        click.echo(json.dumps(rows))
    elif rows:
        click.echo(listing_table(rows, time.time(), group))
        queued = any(row["status"] == Status.QUEUED for row in rows)
        if queued and not client.remote and (overloaded := overload.in_words()):
            click.echo(overloaded, err=True)
    elif status or search:
        click.echo("No matching runs.")
    else:
        click.echo("No runs yet. Queue one with `lathe run CONFIG.yaml`.")


def show(run_id: str, *, as_json: bool) -> None:
    """Prints one run."""
    values = connect().get(path_of("runs", run_id))
    click.echo(json.dumps(values) if as_json else page(values, time.time()))


def listing_table(rows: list[dict[str, Any]], now: float, group: str = "") -> str:
    """The runs as aligned columns; `now`, in epoch seconds, is for the duration of unfinished runs."""
    heading = ["RUN", "STATUS", "NAME", "PROGRESS", "LOSS", "BEST EVAL LOSS", "PEAK MEMORY", "DURATION", "QUEUED"]
    cells = [heading, *[_row(row, now) for row in rows]]
    if group:  # after the columns that are aligned
        cells = [
            [*row, value] for row, value in zip(cells, [group.upper(), *(row["group"] for row in rows)], strict=True)
        ]
    return numbers.table(cells, right=frozenset({4, 5, 6, 7}))


def _row(row: dict[str, Any], now: float) -> list[str]:
    return [
        row["id"],
        _status(row),
        numbers.shorten(row["name"], 40),
        progress(row),
        "diverged" if row["diverged"] else evaluation(row["task"], row["final_loss"]),
        evaluation(row["task"], row["best_loss"]),
        byte_size(row["peak_bytes"]),
        numbers.duration(took(row, now)),
        numbers.when(row["queued_at"]),
    ]


def _status(row: dict[str, Any]) -> str:
    """The status, with what is wrong with the result or was not done after it; an older server does not say that."""
    return ", ".join([row["status"], *([DIFFERS] if row.get("differs") else []), *missing(row.get("undone") or {})])


def page(values: dict[str, Any], now: float) -> str:
    """One run as text."""
    parts = [values["name"], numbers.pairs(_overview(values, now))]
    for heading, body in (
        ("Results", results(values)),
        ("Not done", not_done(values)),
        ("Error", failure(values["error"])),
        ("Attempts", _attempts(values["attempts"])),
        ("Configuration", _configuration(values["config"])),
        ("Data, SHA-256", list(values["fingerprints"].items())),
        ("Events", _events(values["events"])),
    ):
        if body:
            parts += ["", heading, numbers.pairs(body)]
    return "\n".join(parts)


def not_done(values: dict[str, Any]) -> list[tuple[str, str]]:
    """What was not done after the result was saved, with the reasons, and the command that does it; empty if all was."""
    undone = values.get("undone") or {}  # absent from an older server
    again = [("Do the rest", f"lathe resume {values['id']}")] if undone and values["status"] == "finished" else []
    return [*((phase.capitalize(), why) for phase, why in undone.items()), *again]


def _overview(values: dict[str, Any], now: float) -> list[tuple[str, str]]:
    request = f", {values['request']} requested" if values["request"] else ""
    phase = f" ({values['phase']})" if values["status"] == "running" and values["phase"] else ""
    lines = [
        ("Run", values["id"]),
        ("Status", f"{_status(values)}{phase}{request}"),
        ("Waits", (values.get("queue") or {}).get("quota") or NONE),
        ("Progress", progress(values)),
        ("Attempts", str(values["attempt"])),
        ("Queued", numbers.when(values["queued_at"])),
        ("Started", numbers.when(values["started_at"])),
        ("Ended", numbers.when(values["finished_at"])),
        ("Duration", numbers.duration(took(values, now))),
        ("Devices", ", ".join(values["devices"]) or NONE),
        ("Engine", strategy(values)),
    ]
    return [(label, value) for label, value in lines if value != NONE]


def results(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary's metrics with their units; empty without a summary."""
    summary = values["summary"]
    if not summary:
        return []
    trained = (
        f"{numbers.count(summary.get('trainable_parameters'))} of {numbers.count(summary.get('total_parameters'))}"
    )
    speed = [numbers.rate(summary.get(f"{noun}_per_second"), noun) for noun in ("tokens", "samples")]
    task = values["config"].get("task")
    (measure, value), (_, final) = evaluated(task, summary.get("eval_loss")), evaluated(task, summary.get("final_loss"))
    lines = [
        *_scores(summary.get("answers")),
        (f"Final {measure}", numbers.decimal(final)),
        (f"Evaluation {measure}", numbers.decimal(value)),
        ("Held-out perplexity", numbers.decimal(summary.get("eval_perplexity"))),
        ("Trainable parameters", f"{trained} ({_four_places(summary.get('trainable_percent'))})"),
        (f"{result_noun(values['config']).capitalize()} size", byte_size(summary.get("adapter_bytes"))),
        ("Speed", ", ".join(speed)),
        *_memory(summary.get("memory") or {}),
        ("Forecast peak", byte_size((values["forecast"] or {}).get("allocated_bytes"))),
        ("Training time", numbers.duration(summary.get("train_seconds"))),
        ("Energy of the GPUs", numbers.energy(summary.get("energy_joules"))),
    ]
    return [(label, value) for label, value in lines if value != NONE]


def _scores(answers: dict[str, Any] | None) -> list[tuple[str, str]]:
    listed = [("exact_match", "exact match", exact_match(answers)), *scores(answers)]
    shown = [(name, label, text, change(answers, name)) for name, label, text in listed]
    return [(f"Held-out {label}", f"{text}: {found}" if found else text) for _, label, text, found in shown]


def _memory(memory: dict[str, list[int | None]]) -> list[tuple[str, str]]:
    labels = {"before": "Memory before training", "after": "Memory after training", "peak": "Peak memory"}
    return [(label, _per_rank(memory[f"{key}_bytes"])) for key, label in labels.items() if memory.get(f"{key}_bytes")]


def _per_rank(sizes: list[int | None]) -> str:
    if len(sizes) == 1:
        return byte_size(sizes[0])
    return ", ".join(f"rank {rank}: {byte_size(size)}" for rank, size in enumerate(sizes))


def _four_places(percent: float | None) -> str:
    return NONE if percent is None else f"{percent:.4f}%"


def failure(error: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The error of a run: message, fix, phase, rank, cause, and the end of its traceback or, of an error that no rank
    explained, of its log; empty without an error."""
    if not error:
        return []
    labels = {"message": "Error", "fix": "Fix", "phase": "Phase", "rank": "Rank"}
    lines = [(label, str(error[key])) for key, label in labels.items() if error.get(key) not in (None, "")]
    if diagnosis := error.get("diagnosis"):
        lines.append(("Cause", f"{diagnosis['explanation']} ({diagnosis['cause']})"))
        lines += [("Fix", "\n".join(diagnosis["fix"]))] if diagnosis["fix"] and not error.get("fix") else []
    explained = error.get("fix") and not error.get("diagnosis") and error.get("rank") is not None  # by the rank itself
    for key, label in (("traceback", "Traceback"), *(() if explained else (("log_tail", "Log"),))):
        if end := str(error.get(key) or "").rstrip():
            return [*lines, (label, "\n".join(end.splitlines()[-LOG_SHOWN:]))]
    return lines


def _attempts(attempts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each attempt with its changed settings, its outcome and its out-of-memory report."""
    if len(attempts) < 2 and not any(attempt["out_of_memory"] for attempt in attempts):
        return []
    lines: list[tuple[str, str]] = []
    for attempt in attempts:
        settings = f"with {in_words(attempt['stepped_down'])}" if attempt["stepped_down"] else "settings unchanged"
        outcome = f"{settings}: {attempt['outcome'] or 'running'}. {attempt['reason']}".strip()
        lines.append((str(attempt["number"]), outcome))
        if attempt["out_of_memory"]:
            lines += facts(OutOfMemory(**attempt["out_of_memory"]))
    return lines


def _configuration(config: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, data_words(value, {}) if name in FIELDS else plain(value))
        for name, value in config.items()
        if value is not None and value != ""
    ]


def _events(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    hidden = len(events) - EVENTS_SHOWN
    earlier = (
        [("", f"{numbers.plural(hidden, 'earlier event', 'earlier events')}; --json shows all")] if hidden > 0 else []
    )
    return earlier + [(numbers.when(event["time"]), _event(event)) for event in events[-EVENTS_SHOWN:]]


def _event(event: dict[str, Any]) -> str:
    level = "" if event["level"] == "info" else f"{event['level']}: "
    return f"{level}{event['message']}"


def compare(run_ids: tuple[str, ...], *, as_markdown: bool, as_csv: bool, as_json: bool, all_settings: bool) -> None:
    """Prints the comparison of runs in the order given."""
    ending = "" if as_json else ".csv" if as_csv else ".md" if as_markdown else ".txt"
    path, query = f"/api/compare{ending}", {"runs": ",".join(run_ids), "all_settings": all_settings}
    client = connect()
    text = json.dumps(client.get(path, **query)) if as_json else client.text(path, params=query)
    click.echo(text.rstrip("\n"))


def logs(run_id: str, *, follow: bool, tail: int, as_json: bool) -> int:
    """Prints the last `tail` lines and, with `follow`, new lines until the run ends. Returns the exit code."""
    client, path = connect(), path_of("runs", run_id, "/log")
    page = client.get(path, last=True, limit=tail)
    _print_lines(page["lines"], as_json)
    if not page["lines"] and not as_json:
        click.echo(f"No output yet{': the run is queued' if page['status'] == 'queued' else ''}.", err=True)
    try:
        while follow:
            page = client.get(path, after=page["next"])
            _print_lines(page["lines"], as_json)
            if not page["lines"]:
                if page["ended"]:
                    break
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return 130
    return 0


def _print_lines(lines: list[dict[str, Any]], as_json: bool) -> None:
    for line in lines:
        click.echo(json.dumps(line) if as_json else line["text"])

"""Runs as a table for other programs: CSV, JSON or Markdown."""

import csv
import io
import json
import time
from collections.abc import Sequence
from typing import Any

from app.documents.run import brief
from app.format import numbers
from app.format.numbers import csv_cell
from app.format.run_text import evaluation
from training.config.fields import settings
from training.redaction import markdown_text
from training.units import NONE, byte_size
from worker.store.tables import Run

MEDIA = {"csv": "text/csv; charset=utf-8", "json": "application/json", "markdown": "text/markdown; charset=utf-8"}
_RESULTS = (
    "eval_loss", "eval_perplexity", "trainable_parameters", "total_parameters", "trainable_percent", "adapter_bytes",
    "tokens_per_second", "samples_per_second", "train_seconds",
)  # fmt: skip


def written(runs: Sequence[Run], form: str) -> str:
    """The runs in one of the forms of `MEDIA`."""
    match form:
        case "json":
            documents = [
                _brief(run) | {"notes": run.notes, "config": run.config, "summary": run.summary} for run in runs
            ]
            return json.dumps(documents, ensure_ascii=False, indent=1)
        case "csv":
            return _csv([_flat(run) for run in runs])
        case _:
            return _markdown(runs)


def _brief(run: Run) -> dict[str, Any]:
    return brief(run).model_dump(mode="json")


def _flat(run: Run) -> dict[str, Any]:
    """One level: the run's own values, results, then every setting under its name with "config." before it."""
    summary = run.summary or {}
    answers = summary.get("answers") or {}
    values = {key: value for key, value in _brief(run).items() if key not in ("model", "data", "method")}
    values |= {"notes": run.notes} | {key: summary.get(key) for key in _RESULTS}
    values["exact_match"] = answers.get("exact_match_after")
    return values | {f"config.{name}": run.config.get(name) for name in settings()}


def _csv(rows: list[dict[str, Any]]) -> str:
    """Lists and objects as JSON. Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["id"])
    writer.writeheader()
    writer.writerows([{key: _cell(value) for key, value in row.items()} for row in rows])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else csv_cell(value)


def _markdown(runs: Sequence[Run]) -> str:
    heads = ("Run", "Status", "Model", "Method", "Steps", "Loss", "Best eval loss", "Peak memory", "Duration", "Tags")
    lines = [_line(heads), _line(["---"] * len(heads))]
    lines += [_line([markdown_text(text) for text in _texts(run)]) for run in runs]
    return "\n".join(lines) + "\n"


def _texts(run: Run) -> list[str]:
    return [
        f"{run.name} ({run.id})",
        run.status.value,
        str(run.config.get("model", "")),
        settings()["method"].in_words(run.config.get("method")),
        f"{run.step:,}",
        "diverged" if run.diverged else evaluation(run.config.get("task"), run.final_loss),
        evaluation(run.config.get("task"), run.best_loss),
        byte_size(run.peak_bytes),
        numbers.duration(run.worked(time.time())),
        ", ".join(run.tags) or NONE,
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

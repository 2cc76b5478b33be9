"""What the playground offers: models by their base, prompts from held-out rows, and what is served now."""

import json
from collections.abc import Iterator
from typing import Any

from sqlmodel import Session

from training.data.mapping import apply, format_of, parse_mapping
from training.data.to_examples import to_example
from training.errors import DataError
from training.run_folder.paths import PARITY_FOLDER
from worker.serving import requests
from worker.serving.models import BASE, CHECKPOINT
from worker.settings import get_settings
from worker.store import database, runs, served_models
from worker.store.tables import Dataset, PromptSet, Run, ServedModel, ServedState

SERVED = ("id", "owner", "models", "device", "pid", "created_at", "ready_at", "ended_at")
PROMPT_SET = ("id", "owner", "name", "prompts", "answers", "every_result", "created_at")
_ROWS_FILE = "rows.json"
_MOST_SUGGESTIONS = 12


def offered() -> list[dict[str, Any]]:
    """The base models, each with the models on it: name, run, its name and status, and which part of the run it is."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run, names in requests.offered():
        base = str(run.config.get("model")), str(run.config.get("revision") or "main")
        groups.setdefault(base, []).extend(_model(run, name) for name in names)
    return [{"base": base, "revision": revision, "models": models} for (base, revision), models in groups.items()]


def served(session: Session, owner: str) -> dict[str, Any] | None:
    """The latest served models of a user, with their state; None if there never were any."""
    found = served_models.latest(session=session, owner=owner)
    return served_document(session, found) if found else None


def served_document(session: Session, found: ServedModel) -> dict[str, Any]:
    """Served models with their state; `reason` says why they wait, why vLLM does not answer, or why they ended."""
    state, reason = found.state, found.reason
    if requests.is_lost(session, found):
        state, reason = ServedState.ENDED, "Its worker stopped or cannot reach the database."
    elif state is ServedState.WAITING and not reason:
        reason = "No worker has started it yet."
    seconds = database.now(session=session) - found.created_at
    return {name: getattr(found, name) for name in SERVED} | {
        "state": state.value, "reason": reason, "age_seconds": max(seconds, 0.0)
    }  # fmt: skip


def suggestions(run_id: str) -> list[dict[str, Any]]:
    """Prompts from a run's held-out rows; of a run without a result, from the first rows of its data set.

    Each has `messages` or, for a model trained on plain text, `prompt`; `expected` is the row's own answer.

    Raises:
        RunNotFound: there is no such run.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        item = session.get(Dataset, run.dataset_id) if run.dataset_id else None
    held_out = _compared(run)
    return held_out or (list(_first_rows(run, item)) if item else [])


def prompt_set(found: PromptSet) -> dict[str, Any]:
    """A prompt set with the latest answers of each model."""
    return {name: getattr(found, name) for name in PROMPT_SET}


def _model(run: Run, name: str) -> dict[str, Any]:
    part = name.partition(":")[2]
    kind = "result" if not part else "base" if part == BASE else "checkpoint"
    label = {"result": run.name, "base": "base model"}.get(kind, f"{run.name}, step {part.removeprefix(CHECKPOINT)}")
    return {
        "name": name, "kind": kind, "label": label, "run_id": run.id, "status": run.status.value,
        "finished_at": run.finished_at,
    }  # fmt: skip


def _compared(run: Run) -> list[dict[str, Any]]:
    """The rows with which the forms of the result are compared: held-out ones, if the run holds out any."""
    path = get_settings().runs_dir / run.id / PARITY_FOLDER / _ROWS_FILE
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["prompts"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        _suggestion(row.get("messages"), row["text"], row.get("expected_text", "").strip(), f"row {row['row'] + 1}")
        for row in rows[:_MOST_SUGGESTIONS]
        if not row.get("tools")
    ]


def _first_rows(run: Run, item: Dataset) -> Iterator[dict[str, Any]]:
    text = run.config.get("columns") or item.columns_map
    for number, row in enumerate(item.sample[:_MOST_SUGGESTIONS], 1):
        try:
            mapping = parse_mapping(text) if text else {}
            example = to_example(apply(mapping, row) if mapping else row, format_of(mapping) if mapping else item.shape)
        except (DataError, KeyError):
            continue
        last = next((n for n, one in enumerate(example.messages or []) if one["role"] == "assistant"), None)
        if example.messages is None:
            if example.prompt:
                yield _suggestion(None, example.prompt, example.answer, f"row {number}")
        elif last and not example.tools:
            yield _suggestion(example.messages[:last], "", str(example.messages[last]["content"]), f"row {number}")


def _suggestion(messages: list[dict[str, Any]] | None, prompt: str, expected: str, label: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": messages, "prompt": None} if messages else {"messages": None, "prompt": prompt}
    return asked | {"expected": expected, "label": label}

"""The playground: models by their base, what is served now, prompts from held-out rows, and prompt sets."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field
from sqlmodel import Session

from app.documents import Document, Stored, columns
from training import json_files
from training.data.mapping import apply, format_of, parse_mapping
from training.data.to_examples import to_example
from training.errors import DataError
from training.run_folder.paths import PARITY_FOLDER
from worker.serving import requests
from worker.serving.models import BASE, CHECKPOINT
from worker.settings import get_settings
from worker.store import database, runs, served_models
from worker.store.tables import Dataset, PromptSet, Run, ServedModel, ServedState

_SERVED = ("id", "owner", "models", "loads", "device", "pid", "created_at", "ready_at", "ended_at")
_PROMPT_SET = ("id", "owner", "name", "prompts", "answers", "every_result", "created_at")
_ROWS_FILE = "rows.json"
_MOST_SUGGESTIONS = 12


@columns(ServedModel, _SERVED)
class ServedAnswer(Stored):
    """A process that serves models, and its state; `reason` says why it waits, why vLLM does not answer, or why it
    ended. Times are seconds since the epoch."""

    state: ServedState
    reason: str
    age_seconds: float
    position: int | None = Field(None, description="place in the queue, from 1; null unless it waits")


class OfferedModel(Document):
    """A model that can be served, by its name in requests."""

    name: str
    kind: Literal["result", "checkpoint", "base"]
    label: str
    run_id: str
    status: str
    finished_at: float | None


class OfferedBase(Document):
    """A base model (folder or hub id, and revision) with the models on it."""

    base: str
    revision: str
    models: list[OfferedModel]


class Served(Document):
    """The caller's served models (of those that ended or wait the latest; null: none yet), those of the caller's that wait for
    their place, the longest first, and what can be served, the newest runs first."""

    served: ServedAnswer | None
    queue: list[ServedAnswer]
    offered: list[OfferedBase]


class Suggestion(Document):
    """A prompt from a run's rows: `messages` or `prompt`, and the row's own answer."""

    messages: list[dict[str, Any]] | None
    prompt: str | None
    expected: str
    label: str


class Suggestions(Document):
    """Prompts from a run's held-out rows, or from the first rows of its data set."""

    suggestions: list[Suggestion]


@columns(PromptSet, _PROMPT_SET)
class PromptSetAnswer(Stored):
    """Prompts that a user keeps, with the latest answers of each model."""


class PromptSets(Document):
    """All prompt sets, by name."""

    prompt_sets: list[PromptSetAnswer] = Field(description="with the latest answers of each model")


def offered() -> list[OfferedBase]:
    """The base models, each with the models on it."""
    groups: dict[tuple[str, str], list[OfferedModel]] = {}
    for run, names in requests.offered():
        base = str(run.config.get("model")), str(run.config.get("revision") or "main")
        groups.setdefault(base, []).extend(_model(run, name) for name in names)
    return [OfferedBase(base=base, revision=revision, models=models) for (base, revision), models in groups.items()]


def of_user(session: Session, owner: str) -> Served:
    """What a user serves, and what can be served."""
    return Served(served=served(session, owner), queue=queue(session, owner), offered=offered())


def served(session: Session, owner: str) -> ServedAnswer | None:
    """The served models of a user, with their state; None if there never were any."""
    latest = served_models.latest(session=session, owner=owner)
    return served_document(session, latest) if latest else None


def queue(session: Session, owner: str) -> list[ServedAnswer]:
    """The models of a user that wait until those which are served make room."""
    shown = served_models.latest(session=session, owner=owner)
    waiting = [one for one in served_models.waiting(session=session) if one.owner == owner]
    return [served_document(session, one) for one in waiting if shown is None or one.id != shown.id]


def served_document(session: Session, served: ServedModel) -> ServedAnswer:
    """Served models with their state."""
    state, reason = served.state, served.reason
    if requests.is_lost(session, served):
        state, reason = ServedState.ENDED, "Its worker stopped or cannot reach the database."
    elif state is ServedState.WAITING and not reason:
        reason = "No worker has started it yet."
    seconds = max(database.now(session=session) - served.created_at, 0.0)
    place = served_models.position(session=session, served=served) if state is ServedState.WAITING else None
    return ServedAnswer(**served.shown(*_SERVED), state=state.value, reason=reason, age_seconds=seconds, position=place)


def suggestions(run_id: str) -> list[Suggestion]:
    """Prompts from a run's held-out rows; of a run without a result, from the first rows of its data set.

    Raises:
        RunNotFound: there is no such run.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        item = session.get(Dataset, run.dataset_id) if run.dataset_id else None
    held_out = _compared(run)
    return held_out or (list(_first_rows(run, item)) if item else [])


def _model(run: Run, name: str) -> OfferedModel:
    part = name.partition(":")[2]
    kind: Literal["result", "checkpoint", "base"] = "result" if not part else "base" if part == BASE else "checkpoint"
    label = {"result": run.name, "base": "base model"}.get(kind, f"{run.name}, step {part.removeprefix(CHECKPOINT)}")
    status, ended = run.status.value, run.finished_at
    return OfferedModel(name=name, kind=kind, label=label, run_id=run.id, status=status, finished_at=ended)


def _compared(run: Run) -> list[Suggestion]:
    """The rows with which the forms of the result are compared: held-out ones, if the run holds out any."""
    path = get_settings().runs_dir / run.id / PARITY_FOLDER / _ROWS_FILE
    try:
        rows = json_files.read(path)["prompts"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        _suggestion(row.get("messages"), row["text"], row.get("expected_text", "").strip(), f"row {row['row'] + 1}")
        for row in rows[:_MOST_SUGGESTIONS]
        if not row.get("tools")
    ]


def _first_rows(run: Run, item: Dataset) -> Iterator[Suggestion]:
    text = run.config.get("columns") or item.columns_map
    for number, row in enumerate(item.sample[:_MOST_SUGGESTIONS], 1):
        try:
            mapping = parse_mapping(text) if text else {}
            example = to_example(
                apply(mapping, row) if mapping else row, format_of(mapping) if mapping else item.row_format
            )
        except (DataError, KeyError):
            continue
        last = next((n for n, one in enumerate(example.messages or []) if one["role"] == "assistant"), None)
        if example.messages and not example.answered and not example.tools:
            yield _suggestion(example.messages, "", "", f"row {number}")
        elif example.messages is None:
            if example.prompt:
                yield _suggestion(None, example.prompt, example.answer, f"row {number}")
        elif last and not example.tools:
            yield _suggestion(example.messages[:last], "", str(example.messages[last]["content"]), f"row {number}")


def _suggestion(messages: list[dict[str, Any]] | None, prompt: str, expected: str, label: str) -> Suggestion:
    text = None if messages else prompt
    return Suggestion(messages=messages or None, prompt=text, expected=expected, label=label)

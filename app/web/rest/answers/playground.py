"""The playground: models that are served or could be, and prompt sets."""

from typing import Any, Literal

from pydantic import Field

from app.web.rest.answers.form import Answer, columns
from worker.store.tables import PromptSet, ServedModel


@columns(ServedModel, ("id", "owner", "models", "device", "pid", "created_at", "ready_at", "ended_at"))
class ServedAnswer(Answer):
    """A process that serves models, and its state; `reason` says why it waits or ended. Times are seconds since the epoch."""

    state: Literal["waiting", "starting", "ready", "ended"]
    reason: str
    age_seconds: float


class OfferedModel(Answer):
    """A model that can be served, by its name in requests."""

    name: str
    kind: Literal["result", "checkpoint", "base"]
    label: str
    run_id: str
    status: str
    finished_at: float | None


class OfferedBase(Answer):
    """A base model (folder or hub id, and revision) with the models on it."""

    base: str
    revision: str
    models: list[OfferedModel]


class Served(Answer):
    """The caller's latest served models (null: none yet), and what can be served, the newest runs first."""

    served: ServedAnswer | None
    offered: list[OfferedBase]


class Suggestion(Answer):
    """A prompt from a run's rows: `messages` or `prompt`, and the row's own answer."""

    messages: list[dict[str, Any]] | None
    prompt: str | None
    expected: str
    label: str


class Suggestions(Answer):
    """Prompts from a run's held-out rows, or from the first rows of its data set."""

    suggestions: list[Suggestion]


@columns(PromptSet, ("id", "owner", "name", "prompts", "answers", "every_result", "created_at"))
class PromptSetAnswer(Answer):
    """Prompts that a user keeps, with the latest answers of each model."""


class PromptSets(Answer):
    """All prompt sets, by name."""

    prompt_sets: list[PromptSetAnswer] = Field(description="with the latest answers of each model")

"""REST routes of the playground: served models and prompt sets."""

from typing import Annotated, Any, Literal

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field

from app.access import callers
from app.access import playground as changes
from app.documents import playground as documents
from app.documents.playground import PROMPT_SET, SERVED
from app.web.rest.routing import Answer, BodyForm, JsonRouter, answers, columns
from worker.store import database, prompt_sets
from worker.store.tables import PromptSet, ServedModel


@columns(ServedModel, SERVED)
class ServedAnswer(Answer):
    """A process that serves models, and its state; `reason` says why it waits, why vLLM does not answer, or why it
    ended. Times are seconds since the epoch."""

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


@columns(PromptSet, PROMPT_SET)
class PromptSetAnswer(Answer):
    """Prompts that a user keeps, with the latest answers of each model."""


class PromptSets(Answer):
    """All prompt sets, by name."""

    prompt_sets: list[PromptSetAnswer] = Field(description="with the latest answers of each model")


router = JsonRouter()


class Wanted(BodyForm):
    """The models to serve, on one base: RUN (its result), RUN:base, RUN:checkpoint-N."""

    models: list[str] = Field(min_length=1, max_length=20)


class NewPromptSet(BodyForm):
    """Prompts to keep under a name, each with `user` and perhaps `system` and `mode` (chat or text)."""

    name: str
    prompts: list[dict[str, str]]


class EveryResult(BodyForm):
    """Whether every new result is asked a prompt set."""

    every_result: bool


class NewAnswers(BaseModel):
    """The answers of a model to the prompts of a set, in their order."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(max_length=200)
    answers: list[dict[str, Any]]


@router.get("/api/served", **answers(Served))
def show_served() -> dict[str, Any]:
    """The caller's latest served models, and what can be served."""
    with database.read() as session:
        now = documents.served(session, callers.current().name)
    return {"served": now, "offered": documents.offered()}


@router.post("/api/served", status_code=202, **answers(ServedAnswer, 202))
def serve(wanted: Annotated[Wanted, Body()]) -> dict[str, Any]:
    """Serves models on one base, in place of the caller's earlier ones: RUN (its result), RUN:base, RUN:checkpoint-N."""
    found = changes.serve(wanted.models)
    with database.read() as session:
        return documents.served_document(session, found)


@router.delete("/api/served/{served_id}", status_code=204)
def end_served(served_id: str) -> None:
    """Ends served models and frees their device."""
    changes.end_served(served_id)


@router.get("/api/runs/{run_id}/prompts", **answers(Suggestions))
def suggest(run_id: str) -> dict[str, Any]:
    """Prompts from a run's held-out rows, or from the first rows of its data set."""
    return {"suggestions": documents.suggestions(run_id)}


@router.get("/api/prompt-sets", **answers(PromptSets))
def list_prompt_sets() -> dict[str, Any]:
    """All prompt sets, with the latest answers of each model."""
    with database.read() as session:
        return {"prompt_sets": [documents.prompt_set(one) for one in prompt_sets.listing(session=session)]}


@router.post("/api/prompt-sets", status_code=201, **answers(PromptSetAnswer, 201))
def save_prompt_set(given: Annotated[NewPromptSet, Body()]) -> dict[str, Any]:
    """Keeps prompts, each with `user` and perhaps `system`; replaces the caller's set of the same name."""
    return documents.prompt_set(changes.save_prompts(given.name, given.prompts))


@router.post("/api/prompt-sets/{set_id}/answers", **answers(PromptSetAnswer))
def keep_answers(set_id: str, given: Annotated[NewAnswers, Body()]) -> dict[str, Any]:
    """Keeps the answers of a model to the prompts of a set, in their order."""
    return documents.prompt_set(changes.keep_answers(set_id, given.model, given.answers))


@router.put("/api/prompt-sets/{set_id}/every-result", **answers(PromptSetAnswer))
def ask_every_result(set_id: str, given: Annotated[EveryResult, Body()]) -> dict[str, Any]:
    """Sets whether every new result of a run is asked the set, when a device is free."""
    return documents.prompt_set(changes.ask_every_result(set_id, every_result=given.every_result))


@router.delete("/api/prompt-sets/{set_id}", status_code=204)
def delete_prompt_set(set_id: str) -> None:
    """Deletes a prompt set with its answers."""
    changes.delete_prompts(set_id)

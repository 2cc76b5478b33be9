"""REST routes of the playground: served models and prompt sets."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import Field

from app.access import callers
from app.access import prompts as changes
from app.documents import playground as documents
from app.documents.playground import PromptSetAnswer, PromptSets, Served, ServedAnswer, Suggestions
from app.web.rest.routing import BodyForm, JsonRouter, Reading
from worker.store import database, prompt_sets

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


class NewAnswers(BodyForm):
    """The answers of a model to the prompts of a set, in their order."""

    model: str = Field(max_length=200)
    answers: list[dict[str, Any]]


@router.get("/api/served")
def show_served(session: Reading) -> Served:
    """The caller's latest served models, and what can be served."""
    return Served(served=documents.served(session, callers.current().name), offered=documents.offered())


@router.post("/api/served", status_code=202)
def serve(wanted: Annotated[Wanted, Body()]) -> ServedAnswer:
    """Serves models on one base, in place of the caller's earlier ones: RUN (its result), RUN:base, RUN:checkpoint-N."""
    found = changes.serve(wanted.models)
    with database.read() as session:
        return documents.served_document(session, found)


@router.delete("/api/served/{served_id}", status_code=204)
def end_served(served_id: str) -> None:
    """Ends served models and frees their device."""
    changes.end_served(served_id)


@router.get("/api/runs/{run_id}/prompts")
def suggest(run_id: str) -> Suggestions:
    """Prompts from a run's held-out rows, or from the first rows of its data set."""
    return Suggestions(suggestions=documents.suggestions(run_id))


@router.get("/api/prompt-sets")
def list_prompt_sets(session: Reading) -> PromptSets:
    """All prompt sets, with the latest answers of each model."""
    kept = prompt_sets.listing(session=session)
    return PromptSets(prompt_sets=[PromptSetAnswer.model_validate(prompts) for prompts in kept])


@router.post("/api/prompt-sets", status_code=201)
def save_prompt_set(given: Annotated[NewPromptSet, Body()]) -> PromptSetAnswer:
    """Keeps prompts, each with `user` and perhaps `system`; replaces the caller's set of the same name."""
    return PromptSetAnswer.model_validate(changes.save_prompts(given.name, given.prompts))


@router.post("/api/prompt-sets/{set_id}/answers")
def keep_answers(set_id: str, given: Annotated[NewAnswers, Body()]) -> PromptSetAnswer:
    """Keeps the answers of a model to the prompts of a set, in their order."""
    return PromptSetAnswer.model_validate(changes.keep_answers(set_id, given.model, given.answers))


@router.put("/api/prompt-sets/{set_id}/every-result")
def ask_every_result(set_id: str, given: Annotated[EveryResult, Body()]) -> PromptSetAnswer:
    """Sets whether every new result of a run is asked the set, when a device is free."""
    return PromptSetAnswer.model_validate(changes.ask_every_result(set_id, every_result=given.every_result))


@router.delete("/api/prompt-sets/{set_id}", status_code=204)
def delete_prompt_set(set_id: str) -> None:
    """Deletes a prompt set with its answers."""
    changes.delete_prompts(set_id)

"""REST routes of the playground: served models and prompt sets."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import Field
from sqlmodel import Session

from app.access import callers
from app.access.permissions import own
from app.documents import playground as documents
from app.documents.playground import PromptSetAnswer, PromptSets, Served, ServedAnswer, Suggestions
from app.web.rest.routing import BodyForm, JsonRouter, Reading, ShortText
from worker.serving import requests
from worker.store import database, prompt_sets, served_models
from worker.store.prompt_sets import MOST_CHARACTERS, MOST_NAME, MOST_PROMPTS

router = JsonRouter()


class Wanted(BodyForm):
    """The models to serve, on one base: RUN (its result), RUN:base, RUN:checkpoint-N."""

    models: list[ShortText] = Field(min_length=1, max_length=20)


Prompt = Annotated[dict[ShortText, Annotated[str, Field(max_length=MOST_CHARACTERS)]], Field(max_length=3)]


class NewPromptSet(BodyForm):
    """Prompts to keep under a name, each with `user` and perhaps `system` and `mode` (chat or text)."""

    name: str = Field(max_length=MOST_NAME)
    prompts: list[Prompt] = Field(max_length=MOST_PROMPTS)


class EveryResult(BodyForm):
    """Whether every new result is asked a prompt set."""

    every_result: bool


class NewAnswers(BodyForm):
    """The answers of a model to the prompts of a set, in their order."""

    model: str = Field(max_length=200)
    answers: list[dict[str, Any]] = Field(max_length=MOST_PROMPTS)


@router.get("/api/served")
def show_served(session: Reading) -> Served:
    """The caller's served models, those that wait for their place, and what can be served."""
    return documents.of_user(session, callers.current().name)


@router.get("/api/served/{served_id}")
def show_one_served(served_id: str, session: Reading) -> ServedAnswer:
    """Served models with their state, or their place in the queue."""
    found = served_models.get(session=session, served_id=served_id)
    own("served model", found)
    return documents.served_document(session, found)


@router.post("/api/served", status_code=202)
def serve(wanted: Annotated[Wanted, Body()]) -> ServedAnswer:
    """Serves models on one base: RUN (its result), RUN:base, RUN:checkpoint-N. They join the caller's earlier ones on the same
    base, or take their place when these have answered."""
    served = requests.ask(wanted.models, callers.current().name)
    with database.read() as session:
        return documents.served_document(session, served)


@router.delete("/api/served/{served_id}", status_code=204)
def end_served(served_id: str) -> None:
    """Ends served models and frees their device."""
    with database.write() as session:
        own("served model", served_models.get(session=session, served_id=served_id))
        served_models.request_end(session=session, served_id=served_id, reason=served_models.ENDED_BY_USER)


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
    owner = callers.current().name
    with database.write() as session:
        kept = prompt_sets.save(session=session, name=given.name, prompts=given.prompts, owner=owner)
    return PromptSetAnswer.model_validate(kept)


@router.post("/api/prompt-sets/{set_id}/answers")
def keep_answers(set_id: str, given: Annotated[NewAnswers, Body()]) -> PromptSetAnswer:
    """Keeps the answers of a model to the prompts of a set, in their order."""
    with database.write() as session:
        _own(session, set_id)
        kept = prompt_sets.keep_answers(session=session, set_id=set_id, model=given.model, answers=given.answers)
    return PromptSetAnswer.model_validate(kept)


@router.put("/api/prompt-sets/{set_id}/every-result")
def ask_every_result(set_id: str, given: Annotated[EveryResult, Body()]) -> PromptSetAnswer:
    """Sets whether every new result of a run is asked the set, when a device is free."""
    with database.write() as session:
        _own(session, set_id)
        kept = prompt_sets.ask_every_result(session=session, set_id=set_id, every_result=given.every_result)
    return PromptSetAnswer.model_validate(kept)


@router.delete("/api/prompt-sets/{set_id}", status_code=204)
def delete_prompt_set(set_id: str) -> None:
    """Deletes a prompt set with its answers."""
    with database.write() as session:
        _own(session, set_id)
        prompt_sets.delete(session=session, set_id=set_id)


def _own(session: Session, set_id: str) -> None:
    own("prompt set", prompt_sets.get(session=session, set_id=set_id))

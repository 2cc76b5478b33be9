"""Changes by users on the playground: served models and prompt sets, each with a permission check."""

from collections.abc import Sequence
from typing import Any

from app.access import callers
from app.access.permissions import own
from worker.serving import requests
from worker.store import database, prompt_sets, served_models
from worker.store.tables import PromptSet, ServedModel


def serve(names: Sequence[str]) -> ServedModel:
    """Asks a worker to serve these models, in place of the caller's earlier ones.

    Raises:
        NotServed: one is unknown or not on this machine, or they have different base models.
    """
    return requests.ask(names, callers.current().name)


def end_served(served_id: str) -> None:
    """Ends a served model. Raises ServedNotFound if there is none, and Forbidden if another user asked for it."""
    with database.write() as session:
        own("served model", served_models.get(session=session, served_id=served_id))
        served_models.request_end(session=session, served_id=served_id, reason="Its user ended it.")


def save_prompts(name: str, prompts: list[dict[str, str]]) -> PromptSet:
    """Keeps a prompt set of the caller.

    Raises:
        BadPromptSet: as `prompt_sets.save`.
    """
    with database.write() as session:
        return prompt_sets.save(session=session, name=name, prompts=prompts, owner=callers.current().name)


def keep_answers(set_id: str, model: str, answers: list[dict[str, Any]]) -> PromptSet:
    """Stores the answers of a model to a prompt set.

    Raises:
        PromptSetNotFound: there is none.
        Forbidden: another user keeps it.
    """
    with database.write() as session:
        own("prompt set", prompt_sets.get(session=session, set_id=set_id))
        return prompt_sets.keep_answers(session=session, set_id=set_id, model=model, answers=answers)


def ask_every_result(set_id: str, *, every_result: bool) -> PromptSet:
    """Sets whether every new result is asked a prompt set.

    Raises:
        PromptSetNotFound: there is none.
        Forbidden: another user keeps it.
    """
    with database.write() as session:
        own("prompt set", prompt_sets.get(session=session, set_id=set_id))
        return prompt_sets.ask_every_result(session=session, set_id=set_id, every_result=every_result)


def delete_prompts(set_id: str) -> None:
    """Deletes a prompt set with its answers.

    Raises:
        PromptSetNotFound: there is none.
        Forbidden: another user keeps it.
    """
    with database.write() as session:
        own("prompt set", prompt_sets.get(session=session, set_id=set_id))
        prompt_sets.delete(session=session, set_id=set_id)

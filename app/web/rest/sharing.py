"""REST routes by which users share what they own."""

from typing import Annotated, Any, Literal

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field

from app.access import sharing
from app.web.rest.answers.form import Answer, answers
from app.web.rest.json_route import JsonRouter
from worker.store.shares import Kind

router = JsonRouter(prefix="/api")

Listed = Literal["runs", "sweeps", "datasets"]
_KINDS: dict[Listed, Kind] = {"runs": "run", "sweeps": "sweep", "datasets": "dataset"}


class Users(BaseModel):
    """The users with whom it is shared from now on."""

    model_config = ConfigDict(extra="forbid")

    users: list[str] = Field(description="Names of accounts; `*` stands for all users.")


class SharedWith(Answer):
    """The users with whom it is shared, by name; `*` stands for all."""

    users: list[str]


@router.get("/{listed}/{object_id}/shares", **answers(SharedWith))
def show_shares(listed: Listed, object_id: str) -> dict[str, Any]:
    """With whom a run, sweep or data set of the caller is shared."""
    return {"users": sharing.users(_KINDS[listed], object_id)}


@router.put("/{listed}/{object_id}/shares", **answers(SharedWith))
def share(listed: Listed, object_id: str, wanted: Annotated[Users, Body()]) -> dict[str, Any]:
    """Shares it with these users and no others: they see it, and only its owner and admins change it."""
    return {"users": sharing.share(_KINDS[listed], object_id, wanted.users)}

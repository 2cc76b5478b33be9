"""REST routes by which users share what they own."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field

from app.access import sharing
from app.web.rest.routing import Answer, JsonRouter, answers
from worker.store.shares import Kind

router = JsonRouter(prefix="/api")
links = APIRouter()

Listed = Literal["runs", "sweeps", "datasets"]
_KINDS: dict[Listed, Kind] = {"runs": "run", "sweeps": "sweep", "datasets": "dataset"}


class Users(BaseModel):
    """The users with whom it is shared from now on."""

    model_config = ConfigDict(extra="forbid")

    users: list[str] = Field(description="Names of accounts; `*` stands for all users.")


class SharedWith(Answer):
    """The users with whom it is shared, by name; `*` stands for all, `link:...` for a link."""

    users: list[str]


class SharedLink(SharedWith):
    """A new link; its path is shown only once."""

    path: str = Field(description="of the link on this server")


@router.get("/{listed}/{object_id}/shares", **answers(SharedWith))
def show_shares(listed: Listed, object_id: str) -> dict[str, Any]:
    """With whom a run, sweep or data set of the caller is shared."""
    return {"users": sharing.users(_KINDS[listed], object_id)}


@router.put("/{listed}/{object_id}/shares", **answers(SharedWith))
def share(listed: Listed, object_id: str, wanted: Annotated[Users, Body()]) -> dict[str, Any]:
    """Shares it with these users and no others: they see it, and only its owner and admins change it."""
    return {"users": sharing.share(_KINDS[listed], object_id, wanted.users)}


@router.post("/{listed}/{object_id}/shares/link", status_code=201, **answers(SharedLink, 201))
def make_link(listed: Listed, object_id: str) -> dict[str, Any]:
    """Makes a link that shares it with each user who opens it. Leave it out of `users` of a later PUT to withdraw it."""
    kind = _KINDS[listed]
    return {"path": sharing.link(kind, object_id), "users": sharing.users(kind, object_id)}


@links.get("/shared/{key}", include_in_schema=False)
def open_link(key: str) -> RedirectResponse:
    """Opens the page of what a link shares."""
    return RedirectResponse(sharing.opened(key), 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})

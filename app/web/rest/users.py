"""REST routes by which admins manage accounts."""

from typing import Annotated, Any

from fastapi import Body, Response
from pydantic import BaseModel, ConfigDict

from app.access import users
from app.web.rest.answers.form import answers
from app.web.rest.answers.system import AccountList, NewToken
from app.web.rest.json_route import JsonRouter
from app.web.rest.parameters import Limit, Offset

router = JsonRouter(prefix="/api/users")


class NewAccount(BaseModel):
    """An account to create; an admin may change the runs and data sets of all users."""

    model_config = ConfigDict(extra="forbid")

    name: str
    admin: bool = False


@router.get("", **answers(AccountList))
def list_users(limit: Limit = 200, offset: Offset = 0) -> dict[str, Any]:
    """The accounts by name, for admins."""
    found = users.listing()
    return {"users": found[offset : offset + limit], "total": len(found)}


@router.post("", status_code=201, **answers(NewToken, 201))
def add_user(account: Annotated[NewAccount, Body()]) -> dict[str, str]:
    """Creates an account, for admins. The answer holds its token, only this once."""
    return {"name": account.name, "token": users.add(account.name, admin=account.admin)}


@router.post("/{name}/token", **answers(NewToken))
def rotate_user(name: str) -> dict[str, str]:
    """Replaces an account's token, for admins; the old one stops working. The answer holds the new one, only this once."""
    return {"name": name, "token": users.rotate(name)}


@router.delete("/{name}", status_code=204)
def remove_user(name: str) -> Response:
    """Removes an account, for admins; its runs and data sets stay."""
    users.remove(name)
    return Response(status_code=204)

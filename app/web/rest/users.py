"""REST routes by which admins manage accounts."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import Field

from app.access import users
from app.web.rest.routing import Answer, BodyForm, JsonRouter, Limit, Offset, answers, columns
from worker.store.accounts import MOST
from worker.store.tables import Account


class AccountUse(Answer):
    """What an account uses and may use at once; a limit is null if there is none, `disk_bytes` where it was not measured."""

    name: str
    devices: int
    max_devices: int | None
    waiting: int
    max_waiting: int | None
    disk_bytes: int | None
    max_disk_bytes: int | None


@columns(Account, ("admin", "created_at"))
class AccountAnswer(AccountUse):
    """A user with their own token, what they use and may use at once. The disk use is measured where it has a limit."""


class AccountList(Answer):
    """The accounts by name, and how many there are in all."""

    users: list[AccountAnswer]
    total: int


class NewToken(Answer):
    """The token of an account, shown only this once."""

    name: str
    token: str


router = JsonRouter(prefix="/api/users")


class Limits(BodyForm):
    """What an account may use at once; null: no limit. A field that is left out stays as it is."""

    max_devices: int | None = Field(default=None, ge=1, le=MOST["max_devices"])
    max_waiting: int | None = Field(default=None, ge=1, le=MOST["max_waiting"], description="runs in the queue")
    max_disk_bytes: int | None = Field(
        default=None, ge=1, le=MOST["max_disk_bytes"], description="of the folders of its runs and its data sets"
    )

    def given(self) -> dict[str, int | None]:
        """The limits in the request."""
        return {name: getattr(self, name) for name in Limits.model_fields if name in self.model_fields_set}


class NewAccount(Limits):
    """An account to create; an admin may change the runs and data sets of all users."""

    name: str
    admin: bool = False


@router.get("", **answers(AccountList))
def list_users(limit: Limit = 200, offset: Offset = 0) -> dict[str, Any]:
    """The accounts by name with what they use and may use at once, for admins."""
    found = users.listing()
    return {"users": found[offset : offset + limit], "total": len(found)}


@router.post("", status_code=201, **answers(NewToken, 201))
def add_user(account: Annotated[NewAccount, Body()]) -> dict[str, str]:
    """Creates an account, for admins. The answer holds its token, only this once."""
    return {"name": account.name, "token": users.add(account.name, admin=account.admin, limits=account.given())}


@router.patch("/{name}", **answers(AccountAnswer))
def limit_user(name: str, limits: Annotated[Limits, Body()]) -> dict[str, Any]:
    """Changes what an account may use at once, for admins. What it uses already stays, even if that is more."""
    return users.limit(name, limits.given())


@router.post("/{name}/token", **answers(NewToken))
def rotate_user(name: str) -> dict[str, str]:
    """Replaces an account's token, for admins; the old one stops working. The answer holds the new one, only this once."""
    return {"name": name, "token": users.rotate(name)}


@router.delete("/{name}", status_code=204)
def remove_user(name: str) -> None:
    """Removes an account, for admins; its runs and data sets stay."""
    users.remove(name)

"""REST routes by which admins manage accounts, and users share what they own."""

from typing import Annotated, Literal

from fastapi import Body
from fastapi.responses import RedirectResponse
from pydantic import Field

from app.access import sharing, users
from app.access.permissions import check_admin
from app.documents.users import AccountAnswer, AccountList, NewToken, SharedLink, SharedWith, answers
from app.web.rest.routing import MOST_NAMED, BodyForm, JsonRouter, Limit, Offset, ShortText
from worker.store import accounts, database
from worker.store.accounts import MOST
from worker.store.shares import Kind

router = JsonRouter(prefix="/api")
links = JsonRouter()

Listed = Literal["runs", "sweeps", "datasets"]
_KINDS: dict[Listed, Kind] = {"runs": "run", "sweeps": "sweep", "datasets": "dataset"}


class Limits(BodyForm):
    """What an account may use at once; null: no limit. A field that is left out stays as it is."""

    max_devices: int | None = Field(default=None, ge=1, le=MOST["max_devices"])
    max_waiting: int | None = Field(
        default=None, ge=1, le=MOST["max_waiting"], description="waiting runs, evaluations, builds, models"
    )
    max_disk_bytes: int | None = Field(
        default=None, ge=1, le=MOST["max_disk_bytes"], description="of the folders of its runs and its data sets"
    )

    def given(self) -> dict[str, int | None]:
        """The limits in the request."""
        return {name: getattr(self, name) for name in Limits.model_fields if name in self.model_fields_set}


class NewAccount(Limits):
    """An account to create; an admin may change the runs and data sets of all users."""

    name: ShortText
    admin: bool = False


class Users(BodyForm):
    """The users with whom it is shared from now on."""

    users: list[ShortText] = Field(max_length=MOST_NAMED, description="Names of accounts; `*` stands for all users.")


@router.get("/users")
def list_users(limit: Limit = 200, offset: Offset = 0) -> AccountList:
    """The accounts by name with what they use and may use at once, for admins."""
    listed = users.listing()
    return AccountList(users=answers(listed[offset : offset + limit]), total=len(listed))


@router.post("/users", status_code=201)
def add_user(account: Annotated[NewAccount, Body()]) -> NewToken:
    """Creates an account, for admins. The answer holds its token, only this once."""
    check_admin("users", account.name)
    with database.write() as session:
        token = accounts.add(session=session, name=account.name, admin=account.admin, limits=account.given())
    return NewToken(name=account.name, token=token)


@router.patch("/users/{name}")
def limit_user(name: str, limits: Annotated[Limits, Body()]) -> AccountAnswer:
    """Changes what an account may use at once, for admins. What it uses already stays, even if that is more."""
    check_admin("users", name)
    with database.write() as session:
        account = accounts.limit(session=session, name=name, limits=limits.given())
    return answers([account])[0]


@router.post("/users/{name}/token")
def rotate_user(name: str) -> NewToken:
    """Replaces an account's token, for admins; the old one stops working. The answer holds the new one, only this once."""
    check_admin("users", name)
    with database.write() as session:
        return NewToken(name=name, token=accounts.rotate(session=session, name=name))


@router.delete("/users/{name}", status_code=204)
def remove_user(name: str) -> None:
    """Removes an account, for admins; its runs and data sets stay."""
    check_admin("users", name)
    with database.write() as session:
        accounts.remove(session=session, name=name)


@router.get("/{listed}/{object_id}/shares")
def show_shares(listed: Listed, object_id: str) -> SharedWith:
    """With whom a run, sweep or data set of the caller is shared."""
    return SharedWith(users=sharing.users(_KINDS[listed], object_id))


@router.put("/{listed}/{object_id}/shares")
def share(listed: Listed, object_id: str, wanted: Annotated[Users, Body()]) -> SharedWith:
    """Shares it with these users and no others: they see it, and only its owner and admins change it."""
    return SharedWith(users=sharing.share(_KINDS[listed], object_id, wanted.users))


@router.post("/{listed}/{object_id}/shares/link", status_code=201)
def make_link(listed: Listed, object_id: str) -> SharedLink:
    """Makes a link that shares it with each user who opens it. Leave it out of `users` of a later PUT to withdraw it."""
    kind = _KINDS[listed]
    return SharedLink(path=sharing.link(kind, object_id), users=sharing.users(kind, object_id))


@links.get("/shared/{key}", include_in_schema=False)
def open_link(key: str) -> RedirectResponse:
    """Opens the page of what a link shares."""
    return RedirectResponse(sharing.opened(key), 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})

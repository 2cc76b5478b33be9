"""With whom the caller shares runs, sweeps and data sets, which matters if LATHE_VISIBILITY is `own`."""

import hashlib
from collections.abc import Collection
from typing import Any

from sqlmodel import Session, select

from app.access import callers
from app.access.permissions import own_dataset, own_run, own_sweep
from training.errors import NotFound, UserError
from worker.settings import get_settings
from worker.store import accounts, database, shares
from worker.store.shares import LINK, Kind
from worker.store.sight import EVERYBODY
from worker.store.tables import Dataset, Run, Sweep

MOST = 100
"""Users with whom one thing may be shared."""


class LinkNotFound(NotFound):
    """No link has this key; its owner may have withdrawn it."""


_PAGES: dict[Kind, str] = {"run": "/run", "sweep": "/sweep", "dataset": "/dataset"}
_TABLES: dict[Kind, Any] = {"run": Run, "sweep": Sweep, "dataset": Dataset}
_OWN = {"run": own_run, "sweep": own_sweep, "dataset": own_dataset}


def users(kind: Kind, object_id: str) -> list[str]:
    """The users with whom it is shared, by name; `*` stands for all, and `link:...` for a link.

    Raises:
        Forbidden: another user owns it.
    """
    own = _OWN[kind](object_id)
    with database.read() as session:
        return shares.users(session=session, kind=kind, object_id=own)


def share(kind: Kind, object_id: str, names: Collection[str]) -> list[str]:
    """Shares it with these users and with no others, and returns their names; `*` stands for all.

    Links that are not among the names stop working; who has opened one is among the users.

    Raises:
        Forbidden: another user owns it.
        UserError: a name is not an account's, or there are too many.
    """
    own = _OWN[kind](object_id)
    with database.write() as session:
        return store(session, kind, own, names)


def store(session: Session, kind: Kind, object_id: str, names: Collection[str]) -> list[str]:
    """As `share`, for what the caller may change."""
    wanted = sorted({name.strip() for name in names if name.strip()})
    if len(wanted) > MOST:
        message = f"cannot be shared with {len(wanted)} users; at most with {MOST}."
        raise UserError(kind, object_id, message, f"Use {EVERYBODY} for all users.")
    links = set(shares.users(session=session, kind=kind, object_id=object_id))
    for name in wanted:
        if name not in links and not _may_be_named(session, name):
            fix = f"Name accounts, or {EVERYBODY} for all users. An admin lists them with `lathe user list`."
            raise UserError(kind, object_id, f"cannot be shared with {name!r}: there is no such account.", fix)
    shares.replace(session=session, kind=kind, object_id=object_id, users=wanted)
    return wanted


def link(kind: Kind, object_id: str) -> str:
    """Makes a link that shares it with each user who opens it, and returns its path. Only a hash of its key is stored.

    Raises:
        Forbidden: another user owns it.
    """
    own, key = _OWN[kind](object_id), accounts.new_token()
    with database.write() as session:
        shares.add(session=session, kind=kind, object_id=own, user=_hashed(key))
    return f"/shared/{key}"


def opened(key: str) -> str:
    """Shares what a link names with the caller, who from now on is one of its users; returns the address of its page.

    Raises:
        LinkNotFound: there is no such link.
    """
    caller = callers.current()
    with database.write() as session:
        shared = shares.of_link(session=session, link=_hashed(key))
        if shared is None:
            raise LinkNotFound("link", None, "does not exist any more.", "Ask who sent it for another one.")
        kind, object_id = shared
        owner = session.exec(select(_TABLES[kind].owner).where(_TABLES[kind].id == object_id)).one()
        if not caller.is_local and owner != caller.name:
            shares.add(session=session, kind=kind, object_id=object_id, user=caller.name)
    return f"{_PAGES[kind]}?id={object_id}"


def _hashed(key: str) -> str:
    return LINK + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]


def _may_be_named(session: Session, name: str) -> bool:
    """True for accounts and all users, and where a proxy names the users, for each possible name."""
    if name == EVERYBODY or accounts.find(session=session, name=name) is not None:
        return True
    return bool(get_settings().proxy_user_header) and accounts.NAME.fullmatch(name) is not None

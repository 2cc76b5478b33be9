"""With whom runs, sweeps and data sets are shared, in the local database or on the server."""

from collections.abc import Collection
from urllib.parse import quote

from app.cli.options import ready
from app.cli.sources.server import chosen
from worker.store.shares import Kind


def users(kind: Kind, object_id: str) -> list[str]:
    """The users with whom it is shared, by name; `*` stands for all.

    Raises:
        UserError, ServerError: there is no such thing, or another user owns it.
    """
    if server := chosen():
        return list(server.get(_path(kind, object_id))["users"])
    from app.access import sharing

    ready()
    return sharing.users(kind, object_id)


def share(kind: Kind, object_id: str, names: Collection[str]) -> list[str]:
    """Shares it with these users and with no others, and returns their names.

    Raises:
        UserError, ServerError: as `users`, or a name is not an account's.
    """
    if server := chosen():
        return list(server.send("PUT", _path(kind, object_id), json={"users": list(names)})["users"])
    from app.access import sharing

    ready()
    return sharing.share(kind, object_id, names)


def link(kind: Kind, object_id: str) -> str:
    """Makes a link that shares it with each user who opens it, and returns its address.

    Raises:
        UserError, ServerError: as `users`.
    """
    if server := chosen():
        return server.address + str(server.send("POST", f"{_path(kind, object_id)}/link")["path"])
    from app.access import sharing
    from app.local.lock import address_of
    from worker.settings import get_settings

    ready()
    settings = get_settings()
    return address_of(settings.host, settings.port) + sharing.link(kind, object_id)


def _path(kind: Kind, object_id: str) -> str:
    return f"/api/{kind}s/{quote(object_id, safe='')}/shares"

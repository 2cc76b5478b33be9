"""`lathe share`: with whom runs, sweeps and data sets are shared."""

import json
from collections.abc import Collection
from typing import Literal
from urllib.parse import quote

import click

from app.cli.errors import Command, CommandError
from app.cli.options import json_option, ready
from app.cli.sources.server import chosen

Kind = Literal["run", "sweep", "dataset"]


@click.command(cls=Command)
@click.argument("kind", type=click.Choice(["run", "sweep", "dataset"]))
@click.argument("object_id", metavar="ID")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--nobody", is_flag=True, help="Share it with nobody any more.")
@click.option("--link", is_flag=True, help="Make a link that shares it with each user who opens it.")
@json_option
def share(
    kind: Kind,
    object_id: str,
    names: tuple[str, ...],
    nobody: bool,
    link: bool,
    as_json: bool,
) -> None:
    """Share a run, sweep or data set with these accounts and no others, or show with whom it is shared.

    The name '*' stands for all users. A link stops working if its name (link:...) is not given the next time. Sharing matters if
    LATHE_VISIBILITY is own: otherwise all users see everything.
    """
    if nobody + link + bool(names) > 1:
        raise CommandError("NAME", None, "cannot be given with another way.", "Give names, --link or --nobody.")
    if link:
        address = _link(kind, object_id)
        click.echo(json.dumps({"address": address}) if as_json else address)
        return
    users = _share(kind, object_id, names) if names or nobody else _users(kind, object_id)
    if as_json:
        click.echo(json.dumps({"users": users}))
        return
    words = "all users" if "*" in users else ", ".join(users)
    click.echo(f"Shared with {words}." if users else "Shared with nobody.")


def _users(kind: Kind, object_id: str) -> list[str]:
    """The users with whom it is shared, by name; `*` stands for all."""
    if server := chosen():
        return list(server.get(_path(kind, object_id))["users"])
    from app.access import sharing

    ready()
    return sharing.users(kind, object_id)


def _share(kind: Kind, object_id: str, names: Collection[str]) -> list[str]:
    """Shares it with these users and with no others, and returns their names."""
    if server := chosen():
        return list(server.send("PUT", _path(kind, object_id), json={"users": list(names)})["users"])
    from app.access import sharing

    ready()
    return sharing.share(kind, object_id, names)


def _link(kind: Kind, object_id: str) -> str:
    """Makes a link that shares it with each user who opens it, and returns its address."""
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

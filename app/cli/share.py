"""`lathe share`: with whom runs, sweeps and data sets are shared."""

import json
from typing import Literal

import click

from app.cli.client import connect, path_of
from app.cli.errors import Command, CommandError
from app.cli.options import json_option

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
    client, path = connect(), path_of(f"{kind}s", object_id, "/shares")
    if link:
        address = client.pages + client.send("POST", f"{path}/link")["path"]
        click.echo(json.dumps({"address": address}) if as_json else address)
        return
    answer = client.send("PUT", path, json={"users": list(names)}) if names or nobody else client.get(path)
    users = answer["users"]
    if as_json:
        click.echo(json.dumps({"users": users}))
        return
    words = "all users" if "*" in users else ", ".join(users)
    click.echo(f"Shared with {words}." if users else "Shared with nobody.")

"""`lathe user`, `lathe token` and `lathe share`: accounts, tokens, and with whom things are shared. A token is printed once."""

import json
from collections.abc import Callable
from typing import Any, Literal

import click

from app.cli.client import connect, path_of
from app.cli.options import Command, CommandError, Group, LocalCommand, json_option
from app.format.numbers import table
from training.units import parse_size

name_argument = click.argument("name", metavar="NAME")

_PATH = "/api/users"
_MOST = 100_000  # accounts in a list

_NO_LIMIT = "none"
_DISK = "max_disk_bytes"
_LIMITS = [
    ("--max-devices", "max_devices", "Devices (GPUs) that its runs, evaluations and served models may use at once."),
    ("--max-waiting", "max_waiting", "Runs, evaluations, builds and models that may wait at once."),
    ("--max-disk", _DISK, "Disk space for its runs and data sets: 200GB, 1.5TiB, ..."),
]


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that limit what an account may use at once."""
    for option, name, text in reversed(_LIMITS):
        metavar = "SIZE" if name == _DISK else "N"
        command = click.option(option, name, metavar=metavar, help=f"{text} [none: no limit]")(command)
    return command


@click.group(cls=Group)
def user() -> None:
    """Manage accounts, each with its own token.

    Users change their own runs and data sets; they see all, unless LATHE_VISIBILITY is own. Admins change all.
    """


@user.command
@name_argument
@click.option("--admin", is_flag=True, help="Can change all runs and data sets.")
@limit_options
@json_option
def add(name: str, admin: bool, as_json: bool, **limits: str | None) -> None:
    """Create an account and print its token, once."""
    client, values = connect(), {"name": name, "admin": admin} | _given(limits)
    if not client.remote:
        _prepare()
    _tell(client.send("POST", _PATH, json=values), as_json=as_json)


@user.command
@name_argument
@limit_options
@json_option
def limit(name: str, as_json: bool, **limits: str | None) -> None:
    """Change what an account may use at once. What it uses already stays."""
    given = _given(limits)
    if not given:
        raise CommandError("", None, "No limit is given.", f"Give one, such as {_LIMITS[0][0]} 2.")
    changed = connect().send("PATCH", path_of("users", name), json=given)
    click.echo(json.dumps(changed) if as_json else _page([changed]))


@user.command("list")
@json_option
def listing(as_json: bool) -> None:
    """List the accounts, and what each uses of what it may use at once."""
    listed = connect().listed(_PATH, "users", _MOST)
    if as_json:
        click.echo(json.dumps(listed))
    elif listed:
        click.echo(_page(listed))
    else:
        click.echo("No accounts yet. Create one with `lathe user add NAME`.")


@user.command
@name_argument
@json_option
def rotate(name: str, as_json: bool) -> None:
    """Replace an account's token and print the new one, once."""
    _tell(connect().send("POST", path_of("users", name, "/token")), as_json=as_json)


@user.command
@name_argument
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove an account. Its runs and data sets stay; admins can change them."""
    connect().send("DELETE", path_of("users", name))
    click.echo(json.dumps({"name": name, "removed": True}) if as_json else f"Removed the account {name}.")


@click.command(cls=LocalCommand)
@click.option("--rotate", is_flag=True, help="Replace the token; the old one stops working.")
@json_option
def token(rotate: bool, as_json: bool) -> None:
    """Print the server's token, which grants the rights of the user who runs the server.

    Creates the token if there is none.
    """
    from app.access import server_token as tokens
    from app.local.lock import address_of
    from worker.settings import get_settings

    settings = get_settings()
    settings.make_folders()
    if rotate and settings.token is not None:
        raise CommandError("LATHE_TOKEN", None, "is set in the environment.", "Change it there.")
    shown = tokens.rotate(settings) if rotate else tokens.server_token(settings)
    address = f"{address_of(settings.host, settings.port)}/?token={shown}"
    click.echo(json.dumps({"token": shown, "address": address}) if as_json else address)


def _given(limits: dict[str, str | None]) -> dict[str, int | None]:
    """The limits in the options, None for no limit."""
    options = {name: option for option, name, _ in _LIMITS}
    return {name: _limit(name, options[name], value) for name, value in limits.items() if value is not None}


def _limit(name: str, option: str, value: str) -> int | None:
    from worker.store.accounts import MOST

    if value == _NO_LIMIT:
        return None
    try:
        number = parse_size(value) if name == _DISK else int(value)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST[name]:
        wanted = "a size such as 200GB or 1.5TiB" if name == _DISK else f"1 to {MOST[name]}"
        raise CommandError(option, value, "is not a limit.", f"Give {wanted}, or {_NO_LIMIT}.")
    return number


def _page(listed: list[dict[str, Any]]) -> str:
    from app.format.system_text import account_cells

    rows = [[account["name"], "admin" if account["admin"] else "user", *account_cells(account)] for account in listed]
    return table([["NAME", "ROLE", "DEVICES", "WAITING", "DISK"], *rows])


def _prepare() -> None:
    """Creates the tables, and the server's own token: a server with accounts has one too."""
    from app.access.server_token import server_token
    from worker.settings import get_settings
    from worker.store import database

    database.migrate()
    server_token(get_settings())


def _tell(created: dict[str, str], *, as_json: bool) -> None:
    name = created["name"]
    click.echo(json.dumps(created) if as_json else created["token"])
    if not as_json:
        click.echo(f"Token of {name}. It is shown only once; replace it with `lathe user rotate {name}`.", err=True)


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

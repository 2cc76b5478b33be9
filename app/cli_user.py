"""`lathe user` and `lathe token`: who may come in. A person's token is printed once, when it is made."""

import json

import click

from app.cli_errors import Command, CommandError
from app.cli_options import Group, json_option
from app.text import table

name_argument = click.argument("name", metavar="NAME")


@click.group(cls=Group)
def user() -> None:
    """Give people a token of their own.

    They see all runs and data sets and change their own; admins change everything.
    """


@user.command(cls=Command)
@name_argument
@click.option("--admin", is_flag=True, help="May change what others own.")
@json_option
def add(name: str, admin: bool, as_json: bool) -> None:
    """Make an account and print its token, this once."""
    from app.tokens import server_token
    from worker import accounts, database
    from worker.settings import get_settings

    database.migrate()
    server_token(get_settings())  # a server with an account has its own token too
    with database.write() as session:
        token = accounts.add(session=session, name=name, admin=admin)
    _tell(name, token, as_json=as_json)


@user.command("list", cls=Command)
@json_option
def listing(as_json: bool) -> None:
    """List the accounts."""
    from app.cli_database import ready
    from worker import accounts, database

    ready()
    with database.read() as session:
        found = [account.model_dump(exclude={"token_hash"}) for account in accounts.listing(session=session)]
    if as_json:
        click.echo(json.dumps(found))
    elif found:
        click.echo(table([["NAME", "RIGHTS"], *[[one["name"], "admin" if one["admin"] else "user"] for one in found]]))
    else:
        click.echo("No accounts yet. `lathe user add NAME` makes one.")


@user.command(cls=Command)
@name_argument
@json_option
def rotate(name: str, as_json: bool) -> None:
    """Give an account another token and print it, this once."""
    from app.cli_database import ready
    from worker import accounts, database

    ready()
    with database.write() as session:
        token = accounts.rotate(session=session, name=name)
    _tell(name, token, as_json=as_json)


@user.command(cls=Command)
@name_argument
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove an account. What it owns stays, for admins to change."""
    from app.cli_database import ready
    from worker import accounts, database

    ready()
    with database.write() as session:
        accounts.remove(session=session, name=name)
    click.echo(json.dumps({"name": name, "removed": True}) if as_json else f"{name} has no account any more.")


@click.command(cls=Command)
@click.option("--rotate", is_flag=True, help="Make another; the one before is worth nothing from then on.")
@json_option
def token(rotate: bool, as_json: bool) -> None:
    """Print the server's own token, which acts as the user who runs the server.

    It is made where there is none yet.
    """
    from app import tokens
    from app.lock import address_of
    from worker.settings import get_settings

    settings = get_settings()
    settings.make_folders()
    if rotate and settings.token is not None:
        raise CommandError("comes from the environment.", "Change it there.", field="LATHE_TOKEN")
    shown = tokens.rotate(settings) if rotate else tokens.server_token(settings)
    address = f"{address_of(settings.host, settings.port)}/?token={shown}"
    click.echo(json.dumps({"token": shown, "address": address}) if as_json else address)


def _tell(name: str, token: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"name": name, "token": token}))
        return
    click.echo(token)
    click.echo(f"The token of {name}. It is not shown again: `lathe user rotate {name}` makes another.", err=True)

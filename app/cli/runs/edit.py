"""`lathe edit` and `lathe delete`: what users say about runs, and their removal."""

import json
from collections.abc import Callable

import click

from app.cli.client import connect, path_of
from app.cli.options import Command, CommandError, json_option
from app.format.numbers import plural
from training.errors import UserError
from training.units import byte_size

runs_argument = click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)


@click.command(cls=Command)
@runs_argument
@click.option("--name", help="Another name.")
@click.option("--notes", help="Notes, in place of the old ones.")
@click.option("--tag", multiple=True, metavar="TAG", help="Add a tag; can be repeated.")
@click.option("--untag", multiple=True, metavar="TAG", help="Remove a tag; can be repeated.")
@click.option("--pin/--unpin", default=None, help="List first, or no longer.")
@click.option("--archive/--unarchive", default=None, help="Hide from the usual list, or put back; nothing is deleted.")
@json_option
@click.pass_context
def edit(
    ctx: click.Context,
    /,
    run_ids: tuple[str, ...],
    name: str | None,
    notes: str | None,
    tag: tuple[str, ...],
    untag: tuple[str, ...],
    pin: bool | None,
    archive: bool | None,
    as_json: bool,
) -> None:
    """Change the name, notes or tags of runs, pin or archive them."""
    if name is not None and len(run_ids) > 1:
        raise CommandError("name", name, "is for one run.", "Give one run, or leave out --name.")

    values = {"name": name, "notes": notes, "pinned": pin, "archived": archive, "add_tags": tag, "remove_tags": untag}

    def change(run_id: str) -> None:
        connect().send("PATCH", path_of("runs", run_id), json=values)

    ctx.exit(_each(run_ids, change, "changed", as_json=as_json))


@click.command(cls=Command)
@runs_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def delete(ctx: click.Context, /, run_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete ended runs with their results, checkpoints and metrics."""
    if not yes:
        _ask(run_ids)

    def remove(run_id: str) -> None:
        connect().send("DELETE", path_of("runs", run_id))

    ctx.exit(_each(run_ids, remove, "deleted", as_json=as_json))


def _ask(run_ids: tuple[str, ...]) -> None:
    client = connect()
    runs = [client.get(path_of("runs", run_id)) for run_id in run_ids]
    named = ", ".join(f"{run['name']} ({run['id']})" for run in runs)
    sizes = client.get("/api/system/runs", ids=",".join(run["id"] for run in runs))["runs"]
    freed = byte_size(sum(size["bytes"] for size in sizes.values()))
    lost = f"Results, checkpoints and metrics are lost. This frees {freed}."
    click.confirm(f"Delete {named}? {lost}", abort=True, err=True)


def _each(run_ids: tuple[str, ...], change: Callable[[str], object], done: str, *, as_json: bool) -> int:
    """Changes each run and prints the outcome; a refusal keeps no other run from being changed. Returns the exit code."""
    changed: list[str] = []
    refused: dict[str, str] = {}
    for run_id in dict.fromkeys(run_ids):
        try:
            change(run_id)
            changed.append(run_id)
        except UserError as error:
            refused[run_id] = f"{error.message} {error.fix}".strip()
    if as_json:
        click.echo(json.dumps({"done": changed, "refused": refused}))
    else:
        click.echo(f"{plural(len(changed), 'run', 'runs')} {done}.")
        for run_id, reason in refused.items():
            click.echo(f"{run_id}: {reason}", err=True)
    return int(bool(refused))

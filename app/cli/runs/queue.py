"""`lathe queue`: the waiting runs in their order, and what changes it."""

import json
from typing import Any

import click

from app.cli.errors import Command, ReportingGroup
from app.cli.options import json_option, ready
from app.cli.sources.server import chosen, run_path

PRIORITIES = ("high", "normal", "low")
run_argument = click.argument("run_id", metavar="RUN")


@click.group(cls=ReportingGroup, invoke_without_command=True)
@json_option
@click.pass_context
def queue(ctx: click.Context, as_json: bool) -> None:
    """Show the waiting runs in the order in which they start, or change it."""
    if ctx.invoked_subcommand is None:
        _show(as_json=as_json)


@queue.command(cls=Command)
@run_argument
@click.option("--before", metavar="RUN", help="Before this run.")
@click.option("--first", is_flag=True, help="Before all others.")
@click.option("--last", is_flag=True, help="After all others.")
@json_option
def move(run_id: str, before: str | None, first: bool, last: bool, as_json: bool) -> None:
    """Move a queued run to another place."""
    if sum((before is not None, first, last)) != 1:
        raise click.UsageError("Give one of --before RUN, --first and --last.")
    if first:
        before = next((run["id"] for run in _document()["waiting"]), None)
    if server := chosen():
        server.send("POST", run_path(run_id, "/move"), json={"before": before})
    else:
        from app.access import changes

        ready()
        changes.move(run_id, before)
    _show(as_json=as_json)


@queue.command(cls=Command)
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@json_option
def hold(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Hold queued runs: they keep their place and do not start."""
    _hold(run_ids, held=True, as_json=as_json)


@queue.command(cls=Command)
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@json_option
def release(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Release held runs."""
    _hold(run_ids, held=False, as_json=as_json)


@queue.command(cls=Command)
@run_argument
@click.argument("priority", type=click.Choice(PRIORITIES))
@json_option
def priority(run_id: str, priority: str, as_json: bool) -> None:
    """Set the priority of a queued run; runs of a higher priority start first."""
    from app.cli.sources import runs

    runs.edit(run_id, {"priority": priority})
    _show(as_json=as_json)


@queue.command(cls=Command)
@json_option
def pause(as_json: bool) -> None:
    """Pause the queue: running runs continue, no other run starts."""
    _pause(paused=True, as_json=as_json)


@queue.command(cls=Command)
@json_option
def resume(as_json: bool) -> None:
    """Let waiting runs start again."""
    _pause(paused=False, as_json=as_json)


def _hold(run_ids: tuple[str, ...], *, held: bool, as_json: bool) -> None:
    from app.cli.sources import runs

    for run_id in run_ids:
        runs.edit(run_id, {"held": held})
    _show(as_json=as_json)


def _pause(*, paused: bool, as_json: bool) -> None:
    if server := chosen():
        server.send("POST", "/api/queue", json={"paused": paused})
    else:
        from app.access import changes

        ready()
        changes.pause_queue(paused=paused)
    _show(as_json=as_json)


def _document() -> dict[str, Any]:
    """The queue, as `lathe queue --json` prints it."""
    if server := chosen():
        return dict(server.get("/api/queue"))
    from app.documents import queue
    from worker.store import database

    ready()
    with database.read() as session:
        return queue.document(session)


def _show(*, as_json: bool) -> None:
    from app.words import numbers
    from app.words import queue as words

    values = _document()
    if as_json:
        click.echo(json.dumps(values))
        return
    if values["paused_at"]:
        click.echo("The queue is paused. `lathe queue resume` lets runs start again.", err=True)
    if not values["waiting"]:
        click.echo("No runs are waiting.")
        return
    rows = [["PLACE", "RUN", "NAME", "OWNER", "PRIORITY", "STARTS"]]
    for run in values["waiting"]:
        name = numbers.shorten(run["name"], 40)
        rows.append([str(run["place"]), run["id"], name, run["owner"], run["priority"], words.starts(run, values)])
    click.echo(numbers.table(rows, right=frozenset({0})))

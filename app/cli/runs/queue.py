"""`lathe queue`: the waiting runs in their order, and what changes it."""

import json
from collections.abc import Sequence
from typing import Any

import click

from app.cli.client import connect, path_of
from app.cli.options import ReportingGroup, json_option, run_argument
from app.format import numbers
from worker.choices import Priority

_PATH = "/api/queue"


@click.group(cls=ReportingGroup, invoke_without_command=True)
@json_option
@click.pass_context
def queue(ctx: click.Context, as_json: bool) -> None:
    """Show the waiting runs in the order in which they start, or change it."""
    if ctx.invoked_subcommand is None:
        _show(connect().get(_PATH), as_json=as_json)


@queue.command
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
        before = next((run["id"] for run in connect().get(_PATH)["waiting"]), None)
    _show(connect().send("POST", path_of("runs", run_id, "/move"), json={"before": before}), as_json=as_json)


@queue.command
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@json_option
def hold(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Hold queued runs: they keep their place and do not start."""
    _change(run_ids, {"held": True}, as_json=as_json)


@queue.command
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@json_option
def release(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Release held runs."""
    _change(run_ids, {"held": False}, as_json=as_json)


@queue.command
@run_argument
@click.argument("priority", type=click.Choice([word.value for word in Priority]))
@json_option
def priority(run_id: str, priority: str, as_json: bool) -> None:
    """Set the priority of a queued run; runs of a higher priority start first."""
    _change([run_id], {"priority": priority}, as_json=as_json)


@queue.command
@json_option
def pause(as_json: bool) -> None:
    """Pause the queue: running runs continue, no other run starts."""
    _show(connect().send("POST", _PATH, json={"paused": True}), as_json=as_json)


@queue.command
@json_option
def resume(as_json: bool) -> None:
    """Let waiting runs start again."""
    _show(connect().send("POST", _PATH, json={"paused": False}), as_json=as_json)


def _change(run_ids: Sequence[str], values: dict[str, Any], *, as_json: bool) -> None:
    client = connect()
    for run_id in run_ids:
        client.send("PATCH", path_of("runs", run_id), json=values)
    _show(client.get(_PATH), as_json=as_json)


def _show(values: dict[str, Any], *, as_json: bool) -> None:
    """Prints the queue."""
    from app.format import run_text as words

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

"""`lathe doctor`: whether this machine can train."""

import json
from dataclasses import asdict

import click

from app.cli.errors import Command
from app.cli.options import json_option


@click.command(cls=Command)
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check whether this machine can train: driver, GPUs, packages, memory, disk and services.

    Each line that is not ok has a cure. The exit code is 1 if a check failed; warnings leave it 0. Takes half a minute.
    """
    from worker.doctor.checks import findings
    from worker.doctor.finding import State

    found = []
    for one in findings():
        found.append(one)
        if not as_json:
            click.echo(f"{one.state.value:<9}{one.subject:<20}{one.said}")
            if one.cure:
                click.echo(f"{'':<29}{one.cure}")
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
    else:
        click.echo(
            _summary(sum(one.state is State.FAILED for one in found), sum(one.state is State.WARNING for one in found))
        )
    ctx.exit(int(any(one.state is State.FAILED for one in found)))


def _summary(failed: int, warned: int) -> str:
    if failed:
        return f"{failed} failed: runs on this machine will fail, or train elsewhere than you expect."
    return f"No check failed; {warned} could be better." if warned else "This machine is ready to train."

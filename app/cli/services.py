"""`lathe up`, `web`, `worker`, `system`, `machines`, `doctor` and backups: an installation's parts, and whether they can train."""

import json
from dataclasses import asdict

import click

from app.cli.options import Command, Group, LocalCommand, calls, json_option
from worker.choices import Freeable

host_option = click.option("--host", help="Address to listen on.  [default: LATHE_HOST, or this machine only]")
port_type = click.IntRange(1, 65535)
port_option = click.option("--port", type=port_type, help="Port to listen on.  [default: LATHE_PORT or 7860]")


@click.command(cls=LocalCommand)
@host_option
@port_option
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@calls("serve:up")
def up() -> None:
    """Start everything on this machine.

    Starts the database, the queue, one worker and the web server. Ctrl-C stops them all: running runs save a checkpoint
    and continue at the next start.
    """


@click.command(cls=LocalCommand)
@host_option
@port_option
@calls("serve:web")
def web() -> None:
    """Start only the web server."""


@click.command(cls=LocalCommand)
@click.option(
    "--drain", is_flag=True, help="On stop, wait until the runs here have saved a checkpoint and are requeued."
)
@calls("serve:worker")
def worker() -> None:
    """Start only a worker.

    It trains queued runs on this machine's devices, or on those in LATHE_DEVICES. Without --drain, runs continue while
    the worker restarts. Use --drain in a container, which stops all its processes at once.
    """


@click.command(cls=LocalCommand)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--secrets", is_flag=True, help="Include the server's token.")
@calls("backup:backup")
def backup() -> None:
    """Write the whole installation to FILE (- is standard output) while it runs.

    That is the database, and the files of data sets and runs: complete checkpoints, results, records and logs. A run that trains
    meanwhile continues from its last complete checkpoint once the backup is restored.
    """


@click.command(cls=LocalCommand, name="restore-backup")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@calls("backup:restore")
def restore_backup() -> None:
    """Restore FILE (- is standard input), which `lathe backup` wrote, into an empty data folder and database.

    Start Lathe afterwards: runs that were training continue from their last complete checkpoints.
    """


@click.command(cls=Command)
@click.option(
    "--free",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in Freeable]),
    metavar="KIND",
    help=f"Free disk space: {', '.join(Freeable)}. Can be repeated.",
)
@click.option("--yes", is_flag=True, help="Free without asking.")
@json_option
@calls("machines:system")
def system() -> None:
    """Show machines, devices, disk use, queue and services."""


@click.group(cls=Group)
def machines() -> None:
    """Take back machines that were put aside after failures.

    `lathe system` lists all machines.
    """


@machines.command
@click.argument("name")
def use(name: str) -> None:
    """Let runs on several machines use NAME again."""
    from app.cli.machines import uncordon

    uncordon(name)
    click.echo(f"Runs on several machines use {name} again.")


@click.command(cls=LocalCommand)
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check whether this machine can train: driver, GPUs, packages, memory, disk and services.

    Each line that is not ok has a cure. The exit code is 1 if a check failed; warnings leave it 0. Takes half a minute.
    """
    from worker.doctor import findings
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

"""`lathe up`, `web`, `worker` and `system`: the parts of an installation."""

import click

from app.cli.errors import Command
from app.cli.options import json_option

FREEABLE = ("finished_checkpoints", "tokens", "uploads", "resumable_checkpoints", "unknown_runs")

host_option = click.option("--host", help="Address to listen on.  [default: LATHE_HOST or 127.0.0.1]")
port_type = click.IntRange(1, 65535)
port_option = click.option("--port", type=port_type, help="Port to listen on.  [default: LATHE_PORT or 7860]")


@click.command(cls=Command)
@host_option
@port_option
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@click.pass_context
def up(ctx: click.Context, host: str | None, port: int | None, open_browser: bool) -> None:
    """Start everything on this machine.

    Starts the database, the queue, one worker and the web server. Ctrl-C stops them all: running runs save a checkpoint
    and continue at the next start.
    """
    from app.cli import serve

    ctx.exit(serve.up(host, port, open_browser=open_browser))


@click.command(cls=Command)
@host_option
@port_option
def web(host: str | None, port: int | None) -> None:
    """Start only the web server."""
    from app.cli import serve

    serve.web(host, port)


@click.command(cls=Command)
@click.option(
    "--drain", is_flag=True, help="On stop, wait until the runs here have saved a checkpoint and are requeued."
)
@click.pass_context
def worker(ctx: click.Context, drain: bool) -> None:
    """Start only a worker.

    It trains queued runs on this machine's devices, or on those in LATHE_DEVICES. Without --drain, runs continue while
    the worker restarts. Use --drain in a container, which stops all its processes at once.
    """
    from app.cli import serve

    ctx.exit(serve.worker(drain=drain))


@click.command(cls=Command)
@click.option(
    "--free",
    "kinds",
    multiple=True,
    type=click.Choice(FREEABLE),
    metavar="KIND",
    help=f"Free disk space: {', '.join(FREEABLE)}. Can be repeated.",
)
@click.option("--yes", is_flag=True, help="Free without asking.")
@json_option
def system(kinds: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Show machines, devices, disk use, queue and services."""
    from app.cli import system as cli_system

    if kinds:
        cli_system.free(list(kinds), yes=yes, as_json=as_json)
    else:
        cli_system.show(as_json=as_json)

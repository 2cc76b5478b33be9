"""`lathe up`, `lathe web` and `lathe worker`: the commands that run until they are stopped."""

import os
import signal
import subprocess
import threading
from types import FrameType
from typing import NoReturn

import click

from worker.settings import PREFIX, ROOT, get_settings


def up(*, host: str | None, port: int | None, open_browser: bool) -> int:
    """Runs everything on this machine until it is stopped. Returns the exit code."""
    _listen(host, port)
    from app.local.up import up as start

    return start(get_settings(), open_browser=open_browser)


def web(*, host: str | None, port: int | None) -> None:
    """Serves the pages until it is stopped."""
    _listen(host, port)
    from app.access.server_token import address_with_token, check_listening
    from app.local.lock import address_of, free_port

    settings = get_settings()
    settings.make_folders()
    check_listening(settings)
    _listen(None, free_port(settings))
    address = address_with_token(address_of(settings.host, get_settings().port), settings)
    click.echo(f"Starting the web server at {address}", err=True)
    from app import server

    server.main()


def worker(*, drain: bool) -> int:
    """Replaces this process by a worker; with `drain`, runs a worker as a child and returns its exit code."""
    from worker.store import database

    database.migrate()
    if not drain:
        database.dispose()
        _become_worker()
    return drained()


def _become_worker() -> NoReturn:
    """Replaces this process, so that signals reach the worker itself."""
    from worker.queue.tasks import worker_command

    command = worker_command()
    os.chdir(ROOT)
    os.execv(command[0], command)  # noqa: S606 - a list, and no shell to do without


def _listen(host: str | None, port: int | None) -> None:
    """Sets the flags as environment variables, which child processes read too."""
    given = {"HOST": host, "PORT": port}
    os.environ.update({PREFIX + name: str(value) for name, value in given.items() if value is not None})
    get_settings.cache_clear()


POLL_SECONDS = 0.5


def drained() -> int:
    """Runs a worker until a signal or its own end, then requeues its runs; a second signal ends the wait for them.

    It is for containers, in which the end of the first process kills all others. Returns the exit code: 0 after a signal.
    """
    from app.local import leaving
    from worker.queue.tasks import worker_command

    stopping, forced = threading.Event(), threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        (forced if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    child = subprocess.Popen(worker_command(), cwd=ROOT)
    while child.poll() is None and not stopping.wait(POLL_SECONDS):
        pass
    # The worker ends first: otherwise it would claim the requeued runs.
    child.terminate()
    code = child.wait()
    leaving.requeue_running_runs(lambda line: click.echo(line, err=True), forced)
    return 0 if stopping.is_set() else code

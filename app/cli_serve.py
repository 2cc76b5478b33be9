"""`lathe up`, `lathe web` and `lathe worker`: what stays and serves."""

import os
from typing import NoReturn

import click

from worker.settings import PREFIX, ROOT, get_settings


def up(host: str | None, port: int | None, *, open_browser: bool) -> int:
    """Starts everything on this machine, and stays until it is told to stop. Returns the exit code.

    Raises:
        SettingsError: an environment variable is wrong.
    """
    _listen(host, port)
    from app.up import up as start

    return start(get_settings(), open_browser=open_browser)


def web(host: str | None, port: int | None) -> None:
    """Serves the pages, and stays until it is told to stop.

    Raises:
        SettingsError: an environment variable is wrong.
        CannotStart: the address is in use, or none to listen on, or others can reach it and no token is set up.
    """
    _listen(host, port)
    from app.lock import address_of, free_port
    from app.tokens import address_with_token, check_listening

    settings = get_settings()
    settings.make_folders()
    check_listening(settings)
    _listen(None, free_port(settings))
    address = address_with_token(address_of(settings.host, get_settings().port), settings)
    click.echo(f"Starting the web server at {address}", err=True)
    from app import main

    main.main()


def worker(*, drain: bool) -> int:
    """Becomes a worker; with `drain` it stays above one instead, and returns that one's exit code."""
    from app import cli_drain
    from worker import database

    database.migrate()
    if not drain:
        database.dispose()
        _become_worker()
    return cli_drain.serve()


def _become_worker() -> NoReturn:
    """Replaces this process, so that signals reach the worker itself."""
    from worker.tasks import worker_command

    command = worker_command()
    os.chdir(ROOT)
    os.execv(command[0], command)  # noqa: S606 - a list, and no shell to do without


def _listen(host: str | None, port: int | None) -> None:
    """Puts what the flags say into the environment: processes that are started from here read it too."""
    given = {"HOST": host, "PORT": port}
    os.environ.update({PREFIX + name: str(value) for name, value in given.items() if value is not None})
    get_settings.cache_clear()

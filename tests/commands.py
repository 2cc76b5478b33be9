"""Running the command `lathe` in a test."""

import json

from click.testing import CliRunner

from app.cli.__main__ import main
from worker.store import database as db
from worker.store import run_list


def lathe(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


def answer(*arguments, exit_code=0):
    """Returns the parsed output of a command with --json."""
    result = lathe(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def all_runs():
    with db.read() as session:
        return run_list.listing(session=session)

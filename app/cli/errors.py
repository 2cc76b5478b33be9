"""The command line's only error boundary: user errors become a message and exit code 1, others a traceback."""

import json
from typing import Any, NoReturn

import click

from app.cli.client import check_here
from app.cli.options import Group
from app.errors import storage_problem
from training.errors import DataError, Problem, UserError


class CommandError(UserError):
    """A command that was called wrongly. `field` is an argument or option, or empty."""


class Reporting(click.Command):
    """A command that prints user errors on stderr, or with --json as {"error": [...]} on stdout, and exits with 1."""

    only_here = False

    def invoke(self, ctx: click.Context) -> Any:
        try:
            if self.only_here:
                check_here(ctx.command_path)
            return super().invoke(ctx)
        except Exception as error:
            problems = explain(error)
            if problems is None:
                raise
            fail(ctx, problems)


class Command(Reporting):
    """A command of `lathe`."""


class LocalCommand(Command):
    """A command that works on the machine of the installation only."""

    only_here = True


class ReportingGroup(Reporting, Group):
    """A group that does something itself if no command of it is given."""


def fail(ctx: click.Context, problems: list[Problem]) -> NoReturn:
    """Prints the problems and exits with code 1."""
    if ctx.params.get("as_json"):
        click.echo(json.dumps({"error": [vars(problem) for problem in problems]}, default=str))
    else:
        for problem in problems:
            click.echo(f"Error: {problem}", err=True)
    ctx.exit(1)


def explain(error: Exception) -> list[Problem] | None:
    """The problems of a user error; None for click's own errors and for bugs."""
    if isinstance(error, (click.exceptions.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)):
        return None
    if isinstance(error, DataError):
        from app.format.datasets import data_problems

        return data_problems(error)
    if isinstance(error, UserError):
        return error.problems
    problem = storage_problem(error) or _system(error)
    return [problem] if problem else None


def _system(error: Exception) -> Problem | None:
    if not isinstance(error, OSError) or error.strerror is None:
        return None
    fix = "Check the path, its permissions and the free space."
    return Problem(str(error.filename or "file"), None, f"{error.strerror}.", fix)

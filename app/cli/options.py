"""What commands share: groups, options and types, the boundary of errors, and what they write to a terminal."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click

from app.cli.client import check_here
from app.errors import storage_problem
from app.format import numbers
from training.errors import DataError, Problem, UserError
from training.parts import is_here, named
from training.redaction import ChangedStream, change_output, printable


class ConfigFile(click.Path):
    """A configuration file: absolute, relative to the current folder, or relative to the installation (static/starter)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from worker.allowed_paths import find_path

        return find_path(str(value)) or super().convert(value, param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
run_argument = click.argument("run_id", metavar="RUN")
count_type = click.IntRange(1, 100_000)
path_type = click.Path(path_type=Path)
config_type = ConfigFile(path_type=Path)


CLEAR = "\r\x1b[2K"


def unchanged(stream: TextIO) -> TextIO:
    """The stream for text that contains Lathe's own escape sequences; the caller makes the rest of it printable."""
    behind: TextIO = stream.unchanged if isinstance(stream, ChangedStream) else stream
    return behind


def clear_line(stream: TextIO) -> None:
    """Clears the terminal's current line."""
    unchanged(stream).write(CLEAR)


class Progress:
    """A line on a terminal's stderr with the share that is done; elsewhere only the end is printed."""

    def __init__(self, name: str) -> None:
        self._name, self._live = name, sys.stderr.isatty()

    def show(self, share: float, text: str) -> None:
        if self._live:
            clear_line(sys.stderr)
            sys.stderr.write(f"{self._name}: {numbers.bar(share, 24)} {text}")
            sys.stderr.flush()

    def close(self, text: str) -> None:
        if self._live:
            clear_line(sys.stderr)
        else:
            sys.stderr.write(f"{self._name}: {text}\n")
        sys.stderr.flush()


class CommandError(UserError):
    """A command that was called wrongly. `field` is an argument or option, or empty."""


class Command(click.Command):
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


def calls(target: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, whose options and help a function has, its body: the function `module:name` of app/cli.

    The module is imported when the command runs, so that help loads nothing heavy. A number that it returns is the exit code.
    """

    def bound(described: Callable[..., None]) -> Callable[..., None]:
        @wraps(described)
        def call(**values: Any) -> None:
            if code := named(f"app.cli.{target}")(**values):
                click.get_current_context().exit(code)

        vars(call)["is_here"] = is_here(f"app.cli.{target.partition(':')[0]}")
        return call

    return bound


class LocalCommand(Command):
    """A command that works on the machine of the installation only."""

    only_here = True


class Group(click.Group):
    """A group that lists its commands in the order of their definition, without those whose body is not here."""

    command_class = Command

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        if getattr(cmd.callback, "is_here", True):
            super().add_command(cmd, name)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command line; nothing that it prints can control the terminal."""
        change_output(printable)
        return super().main(*args, **kwargs)


class ReportingGroup(Command, Group):
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
        from app.format.dataset_text import data_problems

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

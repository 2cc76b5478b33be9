"""`lathe dataset`: options and help of its commands. Heavy imports happen when a command runs."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from app.cli.options import Group, calls, count_type, json_option, path_type
from training.config.task import Task

Function = TypeVar("Function", bound=Callable[..., Any])

columns_option = click.option(
    "--columns", metavar="TEXT", help="Column of each role, such as prompt=question, completion=answers.0.text."
)
set_argument = click.argument("dataset_id", metavar="ID")


def _number(name: str, default: float, kind: Any, sentence: str) -> Callable[[Function], Function]:
    """An option for a number, with its default."""
    return click.option(name, default=default, show_default=True, metavar="N", type=kind, help=sentence)


@click.group(cls=Group)
def dataset() -> None:
    """Check, import and show data sets.

    ID is a data set's id, or its first four or more characters.
    """


@dataset.command
@click.argument("file", type=path_type)
@click.option(
    "--task", type=click.Choice([task.value for task in Task]), help="Also check that the rows fit this task."
)
@click.option("--model", "-m", metavar="MODEL", help="Tokenize for this model: a folder or a hub id.")
@_number("--max-length", 1024, click.IntRange(8, 1_048_576), "Maximum length, in tokens.")
@_number("--micro-batch", 4, click.IntRange(1, 65_536), "Micro batch size in rows.")
@_number("--accumulation", 1, click.IntRange(1, 65_536), "Gradient accumulation steps.")
@_number("--num-processes", 1, click.IntRange(1, 1024), "Number of training processes.")
@_number("--seed", 42, click.IntRange(0, 2**32 - 1), "Seed of the order of rows.")
@_number("--eval-split", 0.05, click.FloatRange(0), "Share or number of rows held out for evaluation.")
@columns_option
@click.option(
    "--validation", metavar="FILE", type=path_type, help="Held-out rows: also find rows that are in both files."
)
@json_option
@calls("dataset.check:check")
def check() -> None:
    """Check a file before training.

    Reads every row; with --model, also tokenizes it. Needs no server and stores nothing. Exits with 1 if the file has
    errors, and prints each with its place and its fix.
    """


@dataset.command
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=path_type)
@click.option("--name", metavar="TEXT", help="Name of the data set.  [default: the file's name]")
@columns_option
@json_option
@calls("dataset.store:add")
def add() -> None:
    """Import a file as a data set; several files become one data set."""


@dataset.command("list")
@click.option("--search", default="", metavar="TEXT", help="Only data sets with these words in name, format or id.")
@click.option("--limit", default=200, show_default=True, metavar="N", type=count_type, help="At most N data sets.")
@json_option
@calls("dataset.store:listing")
def listing() -> None:
    """List the data sets, newest first."""


@dataset.command
@set_argument
@json_option
@calls("dataset.store:show")
def show() -> None:
    """Show one data set: format, rows, warnings, and the runs that use it."""


@dataset.command
@set_argument
@_number("--offset", 0, click.IntRange(0), "Rows to leave out at the start.")
@_number("--limit", 25, click.IntRange(1, 200), "Number of rows.")
@click.option("--search", default="", metavar="TEXT", help="Only rows with this text in any column; case is ignored.")
@json_option
@calls("dataset.store:rows")
def rows() -> None:
    """Print rows of a data set, or those that contain a text."""


@dataset.command
@set_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
@calls("dataset.store:remove")
def remove() -> None:
    """Delete a data set. Ended runs keep their results."""

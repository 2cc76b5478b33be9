"""`lathe dataset`: options and help of its commands. Heavy imports happen when a command runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from app.cli.options import Command, Group, count_type, json_option, path_type
from training.config.choices import Task

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


@dataset.command(cls=Command)
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
@click.pass_context
def check(
    ctx: click.Context,
    file: Path,
    task: str | None,
    model: str | None,
    max_length: int,
    micro_batch: int,
    accumulation: int,
    num_processes: int,
    seed: int,
    eval_split: float,
    columns: str | None,
    validation: Path | None,
    as_json: bool,
) -> None:
    """Check a file before training.

    Reads every row; with --model, also tokenizes it. Needs no server and stores nothing. Exits with 1 if the file has
    errors, and prints each with its place and its fix.
    """
    from app.cli.dataset import check as cli_dataset_check

    options = cli_dataset_check.Options(
        file, task, model, max_length, micro_batch, accumulation, num_processes, seed, eval_split, columns, validation
    )
    ctx.exit(cli_dataset_check.check(options, as_json=as_json))


@dataset.command(cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=path_type)
@click.option("--name", metavar="TEXT", help="Name of the data set.  [default: the file's name]")
@columns_option
@json_option
def add(files: tuple[Path, ...], name: str | None, columns: str | None, as_json: bool) -> None:
    """Import a file as a data set; several files become one data set."""
    from app.cli.dataset import store

    store.add(files, name, columns, as_json=as_json)


@dataset.command(name="list", cls=Command)
@click.option("--search", default="", metavar="TEXT", help="Only data sets with these words in name, format or id.")
@click.option("--limit", default=200, show_default=True, metavar="N", type=count_type, help="At most N data sets.")
@json_option
def listing(search: str, limit: int, as_json: bool) -> None:
    """List the data sets, newest first."""
    from app.cli.dataset import store

    store.listing(search, limit, as_json=as_json)


@dataset.command(cls=Command)
@set_argument
@json_option
def show(dataset_id: str, as_json: bool) -> None:
    """Show one data set: format, rows, warnings, and the runs that use it."""
    from app.cli.dataset import store

    store.show(dataset_id, as_json=as_json)


@dataset.command(cls=Command)
@set_argument
@_number("--offset", 0, click.IntRange(0), "Rows to leave out at the start.")
@_number("--limit", 25, click.IntRange(1, 200), "Number of rows.")
@click.option("--search", default="", metavar="TEXT", help="Only rows with this text in any column; case is ignored.")
@json_option
def rows(dataset_id: str, offset: int, limit: int, search: str, as_json: bool) -> None:
    """Print rows of a data set, or those that contain a text."""
    from app.cli.dataset import store as cli_rows

    cli_rows.rows(dataset_id, offset, limit, search, as_json=as_json)


@dataset.command(cls=Command)
@set_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
def remove(dataset_id: str, yes: bool, as_json: bool) -> None:
    """Delete a data set. Ended runs keep their results."""
    from app.cli.dataset import store

    store.remove(dataset_id, yes=yes, as_json=as_json)

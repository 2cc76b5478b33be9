"""`lathe dataset`: the commands about data sets. Each says what it takes and hands over; the heavy imports wait."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from app.cli_errors import Command
from app.cli_options import Group, count_type, json_option, path_type

Function = TypeVar("Function", bound=Callable[..., Any])

columns_option = click.option(
    "--columns", metavar="TEXT", help="Which column holds what, such as prompt=question, completion=answers.0.text."
)
set_argument = click.argument("dataset_id", metavar="ID")


def _number(name: str, default: float, kind: Any, sentence: str) -> Callable[[Function], Function]:
    """An option for a number of a run's settings, at its default."""
    return click.option(name, default=default, show_default=True, metavar="N", type=kind, help=sentence)


@click.group(cls=Group)
def dataset() -> None:
    """Check data sets, keep them, look at them.

    ID is a data set's id or the first four or more characters of it.
    """


@dataset.command(cls=Command)
@click.argument("file", type=path_type)
@click.option("--model", "-m", metavar="MODEL", help="Count tokens as this model would: a folder or a hub id.")
@_number("--max-length", 1024, click.IntRange(8, 1_048_576), "Maximum length, in tokens.")
@_number("--micro-batch", 4, click.IntRange(1, 65_536), "Rows of a micro batch.")
@_number("--accumulation", 1, click.IntRange(1, 65_536), "Micro batches a step.")
@_number("--num-processes", 1, click.IntRange(1, 1024), "Processes of the run.")
@_number("--seed", 42, click.IntRange(0, 2**32 - 1), "Seed of the order of rows.")
@_number("--eval-split", 0.05, click.FloatRange(0), "Share or number of rows held out for evaluation.")
@columns_option
@click.option(
    "--validation", metavar="FILE", type=path_type, help="Also look for rows of FILE that are held out from it."
)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    file: Path,
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
    """Check a file before anything is trained on it.

    Every row is read; with --model every token is counted too. Needs no server and keeps nothing. Exit 1 where the file
    cannot train, with the place and the cure.
    """
    from app import cli_dataset_check

    wanted = cli_dataset_check.Wanted(
        file, model, max_length, micro_batch, accumulation, num_processes, seed, eval_split, columns, validation
    )
    ctx.exit(cli_dataset_check.check(wanted, as_json=as_json))


@dataset.command(cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=path_type)
@click.option("--name", metavar="TEXT", help="What people see.  [default: the file's name]")
@columns_option
@json_option
def add(files: tuple[Path, ...], name: str | None, columns: str | None, as_json: bool) -> None:
    """Keep a file as a data set; several files become one."""
    from app import cli_dataset_store

    cli_dataset_store.add(files, name, columns, as_json=as_json)


@dataset.command(name="list", cls=Command)
@click.option("--search", default="", metavar="TEXT", help="Only data sets with these words in name, format or id.")
@click.option("--limit", default=200, show_default=True, metavar="N", type=count_type, help="At most N data sets.")
@json_option
def listing(search: str, limit: int, as_json: bool) -> None:
    """List the data sets, newest first."""
    from app import cli_dataset_store

    cli_dataset_store.listing(search, limit, as_json=as_json)


@dataset.command(cls=Command)
@set_argument
@json_option
def show(dataset_id: str, as_json: bool) -> None:
    """Show one data set: format, rows, warnings, and the runs that use it."""
    from app import cli_dataset_store

    cli_dataset_store.show(dataset_id, as_json=as_json)


@dataset.command(cls=Command)
@set_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def remove(dataset_id: str, yes: bool, as_json: bool) -> None:
    """Delete a data set; runs that have ended keep their results."""
    from app import cli_dataset_store

    cli_dataset_store.remove(dataset_id, yes=yes, as_json=as_json)

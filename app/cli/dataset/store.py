"""`lathe dataset add`, `list`, `show` and `remove`: the stored data sets, as text or JSON."""

import json
from pathlib import Path
from typing import Any

import click

from app.cli.sources import datasets as source
from app.words import numbers
from app.words.datasets import issue_lines
from training.data.row_formats import UNKNOWN
from training.units import byte_size


def add(files: tuple[Path, ...], name: str | None, columns: str | None, *, as_json: bool) -> None:
    """Imports a file, or several as one data set.

    Raises:
        DataError: the file has errors; nothing is stored.
    """
    if len(files) > 1 and name:
        raise click.UsageError("--name works with one file only; several files are named after their names.")
    values = source.add(files, name, columns)
    click.echo(json.dumps(values) if as_json else _added(values))


def listing(search: str, limit: int, *, as_json: bool) -> None:
    """Prints the data sets, newest first."""
    listed = source.listing(search, limit)
    if as_json:
        click.echo(json.dumps(listed))
    elif listed:
        click.echo(listing_table(listed))
    else:
        click.echo("No matching data sets." if search else "No data sets yet. Add one with `lathe dataset add FILE`.")


def show(dataset_id: str, *, as_json: bool) -> None:
    """Prints one data set.

    Raises:
        DatasetNotFound: no data set has this id.
    """
    values = source.document(dataset_id)
    click.echo(json.dumps(values) if as_json else page(values))


def remove(dataset_id: str, *, yes: bool, as_json: bool) -> None:
    """Deletes one data set after a confirmation.

    Raises:
        DatasetNotFound, DatasetInUse: it does not exist, or a run still needs it.
    """
    item = source.document(dataset_id)
    if not yes:
        used = f", used by {numbers.plural(len(item['runs']), 'run')}" if item["runs"] else ""
        rows = numbers.plural(item["rows"], "row")
        click.confirm(f"Delete {item['name']} ({rows}{used})?", abort=True, err=True)
    source.remove(item["id"])
    click.echo(json.dumps({"removed": item["id"]}) if as_json else f"Deleted {item['name']} ({item['id']}).")


def listing_table(rows: list[dict[str, Any]]) -> str:
    """The data sets as aligned columns."""
    heading = ["DATA SET", "NAME", "FORMAT", "ROWS", "SIZE", "RUNS", "WARNINGS", "ADDED"]
    lines = [
        [
            row["id"],
            numbers.shorten(row["name"], 40),
            f"{row['format']} ({row['file_format']})",
            numbers.count(row["rows"]),
            byte_size(row["bytes"]),
            numbers.count(row["used_by"]),
            numbers.count(row["warning_kinds"]),
            numbers.when(row["created_at"]),
        ]
        for row in rows
    ]
    return numbers.table([heading, *lines], right=frozenset({3, 4, 5, 6}))


def page(values: dict[str, Any]) -> str:
    """One data set as text."""
    runs = ", ".join(f"{run['name']} ({run['id']}, {run['status']})" for run in values["runs"]) or "none"
    facts = [
        ("Data set", values["id"]),
        ("Format", f"{values['format']}, because {values['reason']}" if values["reason"] else values["format"]),
        ("File", values["file_format"]),
        ("Rows", numbers.count(values["rows"])),
        ("Size", byte_size(values["bytes"])),
        ("Columns", ", ".join(values["columns"])),
        ("Columns not used", ", ".join(values.get("unused_columns", []))),
        ("Mapping", values["columns_map"] or ""),
        ("SHA-256", values["sha256"]),
        ("Added", numbers.when(values["created_at"])),
        ("Runs", runs),
    ]
    lines = [values["name"], numbers.pairs([fact for fact in facts if fact[1]])]
    if values["warnings"]:
        lines += ["", "Warnings", *issue_lines(values["warnings"])]
    return "\n".join(lines)


def _added(item: dict[str, Any]) -> str:
    ready_to_train = ("Train", f"lathe run --data {item['id']} --model MODEL")
    unmapped = ("Map its columns", 'lathe dataset add FILE --columns "prompt=COLUMN, completion=COLUMN"')
    facts = [("Show", f"lathe dataset show {item['id']}"), unmapped if item["format"] == UNKNOWN else ready_to_train]
    added = f"Added {item['name']} as {item['id']}: {numbers.plural(item['rows'], 'row')}, {item['format']}."
    warnings = [f"  {line}" for line in issue_lines(item["warnings"] or [])]
    return "\n".join([added, *warnings, numbers.pairs(facts)])

"""`lathe dataset add`, `list`, `show` and `remove`: the stored data sets, as text or JSON."""

import json
from pathlib import Path
from typing import Any

import click

from app.cli.options import ready
from app.documents import dataset as dataset_document
from app.documents.dataset import document, find
from app.words import numbers
from app.words.datasets import issue_lines
from training.data.row_formats import UNKNOWN
from training.units import byte_size
from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import database, dataset_uses
from worker.store.tables import Dataset


def add(files: tuple[Path, ...], name: str | None, columns: str | None, *, as_json: bool) -> None:
    """Imports a file, or several as one data set.

    Raises:
        DataError: the file has errors; nothing is stored.
    """
    ready()
    get_settings().make_folders()
    item = _store(files, name, columns)
    if columns and item.columns_map != columns:  # the file was already stored
        item = datasets.save_mapping(item.id, columns)
    click.echo(json.dumps(_document(item.id)) if as_json else _added(item))


def listing(search: str, limit: int, *, as_json: bool) -> None:
    """Prints the data sets, newest first."""
    ready()
    with database.read() as session:
        listed = dataset_document.listing(session, search, limit)
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
    ready()
    values = _document(dataset_id)
    click.echo(json.dumps(values) if as_json else page(values))


def remove(dataset_id: str, *, yes: bool, as_json: bool) -> None:
    """Deletes one data set after a confirmation.

    Raises:
        DatasetNotFound, DatasetInUse: it does not exist, or a run still needs it.
    """
    ready()
    with database.read() as session:
        item = find(session, dataset_id)
        users = dataset_uses.users(session=session).get(item.id, [])
    if not yes:
        used = f", used by {numbers.plural(len(users), 'run')}" if users else ""
        click.confirm(f"Delete {item.name} ({numbers.plural(item.rows, 'row')}{used})?", abort=True, err=True)
    with database.write() as session:
        datasets.delete(session=session, dataset_id=item.id)
    click.echo(json.dumps({"removed": item.id}) if as_json else f"Deleted {item.name} ({item.id}).")


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
        ("Mapping", values["columns_map"] or ""),
        ("SHA-256", values["sha256"]),
        ("Added", numbers.when(values["created_at"])),
        ("Runs", runs),
    ]
    lines = [values["name"], numbers.pairs([fact for fact in facts if fact[1]])]
    if values["warnings"]:
        lines += ["", "Warnings", *issue_lines(values["warnings"])]
    return "\n".join(lines)


def _store(files: tuple[Path, ...], name: str | None, columns: str | None) -> Dataset:
    if len(files) == 1:
        return datasets.add(path=files[0], name=name or files[0].name, columns=columns).dataset
    if name:
        raise click.UsageError("--name works with one file only; several files are named after their names.")
    return datasets.add_many(paths=list(files), names=[file.name for file in files])


def _added(item: Dataset) -> str:
    ready_to_train = ("Train", f"lathe run --data {item.id} --model MODEL")
    unmapped = ("Map its columns", 'lathe dataset add FILE --columns "prompt=COLUMN, completion=COLUMN"')
    facts = [("Show", f"lathe dataset show {item.id}"), unmapped if item.shape == UNKNOWN else ready_to_train]
    added = f"Added {item.name} as {item.id}: {numbers.plural(item.rows, 'row')}, {item.shape}."
    warnings = [f"  {line}" for line in issue_lines(item.warnings or [])]
    return "\n".join([added, *warnings, numbers.pairs(facts)])


def _document(dataset_id: str) -> dict[str, Any]:
    with database.read() as session:
        return document(session, dataset_id)

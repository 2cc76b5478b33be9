"""`lathe dataset add`, `list`, `show` and `remove`: the data sets in store, for people or as JSON."""

import json
from pathlib import Path
from typing import Any

import click

from app import dataset_document, text
from app.cli_database import ready
from app.dataset_document import document, find
from app.dataset_words import issue_lines
from training.formats import UNKNOWN
from worker import database, datasets, usage
from worker.models import Dataset
from worker.settings import get_settings


def add(files: tuple[Path, ...], name: str | None, columns: str | None, *, as_json: bool) -> None:
    """Stores a file, or several as one set.

    Raises:
        DataError: naming the file, the line and the cure; nothing is kept then.
    """
    ready()
    get_settings().make_folders()
    item = _store(files, name, columns)
    if columns and item.columns_map != columns:  # it was in store already
        item = datasets.save_mapping(item.id, columns)
    click.echo(json.dumps(_document(item.id)) if as_json else _added(item))


def listing(search: str, limit: int, *, as_json: bool) -> None:
    """Prints the data sets, newest first."""
    ready()
    with database.read() as session:
        found = dataset_document.listing(session, search, limit)
    if as_json:
        click.echo(json.dumps(found))
    elif found:
        click.echo(listing_table(found))
    else:
        click.echo("No data set matches." if search else "No data sets yet. Add one with `lathe dataset add FILE`.")


def show(dataset_id: str, *, as_json: bool) -> None:
    """Prints one data set.

    Raises:
        DatasetNotFound: no data set has this id.
    """
    ready()
    values = _document(dataset_id)
    click.echo(json.dumps(values) if as_json else page(values))


def remove(dataset_id: str, *, yes: bool, as_json: bool) -> None:
    """Deletes one data set, having asked.

    Raises:
        DatasetNotFound, DatasetInUse: there is none, or a run still needs it.
    """
    ready()
    with database.read() as session:
        item = find(session, dataset_id)
        users = usage.users(session=session).get(item.id, [])
    if not yes:
        used = f", used by {text.plural(len(users), 'run')}" if users else ""
        click.confirm(f"Delete {item.name} ({text.plural(item.rows, 'row')}{used})?", abort=True, err=True)
    with database.write() as session:
        datasets.delete(session=session, dataset_id=item.id)
    click.echo(json.dumps({"removed": item.id}) if as_json else f"Deleted {item.name} ({item.id}).")


def listing_table(rows: list[dict[str, Any]]) -> str:
    """The data sets as aligned columns."""
    heading = ["DATA SET", "NAME", "FORMAT", "ROWS", "SIZE", "RUNS", "WARNINGS", "ADDED"]
    lines = [
        [
            row["id"],
            text.shorten(row["name"], 40),
            f"{row['format']} ({row['file_format']})",
            text.count(row["rows"]),
            text.byte_size(row["bytes"]),
            text.count(row["used_by"]),
            text.count(row["warning_kinds"]),
            text.when(row["created_at"]),
        ]
        for row in rows
    ]
    return text.table([heading, *lines], right=frozenset({3, 4, 5, 6}))


def page(values: dict[str, Any]) -> str:
    """One data set as a readable page."""
    runs = ", ".join(f"{run['name']} ({run['id']}, {run['status']})" for run in values["runs"]) or "none"
    facts = [
        ("Data set", values["id"]),
        ("Format", f"{values['format']}, because {values['reason']}" if values["reason"] else values["format"]),
        ("File", values["file_format"]),
        ("Rows", text.count(values["rows"])),
        ("Size", text.byte_size(values["bytes"])),
        ("Columns", ", ".join(values["columns"])),
        ("Mapping", values["columns_map"] or ""),
        ("Fingerprint", f"sha256 {values['sha256']}"),
        ("Added", text.when(values["created_at"])),
        ("Runs", runs),
    ]
    lines = [values["name"], text.pairs([fact for fact in facts if fact[1]])]
    if values["warnings"]:
        lines += ["", "Warnings", *issue_lines(values["warnings"])]
    return "\n".join(lines)


def _store(files: tuple[Path, ...], name: str | None, columns: str | None) -> Dataset:
    if len(files) == 1:
        return datasets.add(path=files[0], name=name or files[0].name, columns=columns).dataset
    if name:
        raise click.UsageError("--name is for one file: several are named after what they are made of.")
    return datasets.add_many(paths=list(files), names=[file.name for file in files])


def _added(item: Dataset) -> str:
    ready_to_train = ("Train on it", f"lathe run --data {item.id} --model MODEL")
    unmapped = ("Say what its columns hold", 'lathe dataset add FILE --columns "prompt=COLUMN, completion=COLUMN"')
    facts = [("Look", f"lathe dataset show {item.id}"), unmapped if item.shape == UNKNOWN else ready_to_train]
    told = f"Added {item.name} as {item.id}: {text.plural(item.rows, 'row')}, {item.shape}."
    warnings = [f"  {line}" for line in issue_lines(item.warnings or [])]
    return "\n".join([told, *warnings, text.pairs(facts)])


def _document(dataset_id: str) -> dict[str, Any]:
    with database.read() as session:
        return document(session, dataset_id)

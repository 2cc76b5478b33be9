"""`lathe dataset add`, `list`, `show`, `rows` and `remove`: the stored data sets, as text or JSON."""

import json
from pathlib import Path
from typing import Any

import click

from app.cli import sent_files
from app.cli.client import connect, path_of
from app.format import numbers
from app.format.dataset_text import issue_lines
from training.config.task import Task
from training.data.row_formats import UNKNOWN
from training.tokens.parts import tasks_of
from training.units import byte_size

_SHOWN = 2000  # characters of a value


def add(files: tuple[Path, ...], name: str | None, columns: str | None, *, as_json: bool) -> None:
    """Imports a file, or several as one data set."""
    if len(files) > 1 and name:
        raise click.UsageError("--name works with one file only; several files are named after their names.")
    values = sent_files.upload(connect(), "/api/datasets", *files, name=name or files[0].name, columns=columns)
    click.echo(json.dumps(values) if as_json else _added(values))


def listing(search: str, limit: int, *, as_json: bool) -> None:
    """Prints the data sets, newest first."""
    listed = connect().listed("/api/datasets", "datasets", limit, search=search)
    if as_json:
        click.echo(json.dumps(listed))
    elif listed:
        click.echo(listing_table(listed))
    else:
        click.echo("No matching data sets." if search else "No data sets yet. Add one with `lathe dataset add FILE`.")


def show(dataset_id: str, *, as_json: bool) -> None:
    """Prints one data set."""
    values = connect().get(path_of("datasets", dataset_id))
    click.echo(json.dumps(values) if as_json else page(values))


def remove(dataset_id: str, *, yes: bool, as_json: bool) -> None:
    """Deletes one data set after a confirmation."""
    client = connect()
    item = client.get(path_of("datasets", dataset_id))
    if not yes:
        used = f", used by {numbers.plural(len(item['runs']), 'run', 'runs')}" if item["runs"] else ""
        rows = numbers.plural(item["rows"], "row", "rows")
        click.confirm(f"Delete {item['name']} ({rows}{used})?", abort=True, err=True)
    client.send("DELETE", path_of("datasets", item["id"]))
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
    task = "" if item["format"] == UNKNOWN or Task.SFT in tasks_of(item["format"]) else " --task grpo"
    ready_to_train = ("Train", f"lathe run --data {item['id']} --model MODEL{task}")
    unmapped = ("Map its columns", 'lathe dataset add FILE --columns "prompt=COLUMN, completion=COLUMN"')
    facts = [("Show", f"lathe dataset show {item['id']}"), unmapped if item["format"] == UNKNOWN else ready_to_train]
    added = f"Added {item['name']} as {item['id']}: {numbers.plural(item['rows'], 'row', 'rows')}, {item['format']}."
    warnings = [f"  {line}" for line in issue_lines(item["warnings"] or [])]
    return "\n".join([added, *warnings, numbers.pairs(facts)])


def rows(dataset_id: str, offset: int, limit: int, search: str, *, as_json: bool) -> None:
    """Prints rows after the first `offset`, with their numbers from 1."""
    client, path = connect(), path_of("datasets", dataset_id, "/rows")
    answer = client.get(path, offset=offset, limit=limit, search=search)
    while answer.get("complete") is False and answer["next"] is None:  # a long search: each answer waits for more rows
        answer = client.get(path, offset=offset, limit=limit, search=search)
    click.echo(json.dumps(answer) if as_json else rows_page(answer, search))


def rows_page(answer: dict[str, Any], search: str) -> str:
    """The rows as text: the number of each, then its values."""
    if not answer["rows"]:
        return "No row contains the text." if search else "No rows there."
    lines = [line for row in answer["rows"] for line in _row_lines(row)]
    more = f" and more (--offset {answer['next']})" if answer["next"] is not None else ""
    what = "rows" if not search else "found" if answer["complete"] else "found so far"
    of = f"of {'more than ' if answer.get('more') else ''}{answer['total']:,} {what}"
    return "\n".join([*lines, "", f"{numbers.plural(len(answer['rows']), 'row', 'rows')} {of}{more}."])


def _row_lines(row: dict[str, Any]) -> list[str]:
    head = f"row {row['row']:,}"
    if "problem" in row:
        return [f"{head} {row['problem']} {row['fix']}"]
    return [head, *(f"  {name}: {_text(value)}" for name, value in row["values"].items())]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    plain = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
    return numbers.shorten(plain, _SHOWN).replace("\n", "\n    ")

"""The data sets that a configuration of another program names, as files with a column mapping."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.config.data_sets import Source, canonical, written
from training.data.mapping import parse_mapping, write_mapping
from training.errors import DataError
from training.foreign.entries import IS_EMPTY, Answer, Values

_USUAL = {"instruction": "instruction", "input": "input", "output": "output", "messages": "conversations"}
ON_HUB = "the data set {0} is on the hub: import it on the page Data sets, then choose it in New run."
UPLOAD = "add it on the page Data sets, from its file or the hub, then choose it in New run."


@dataclass(frozen=True)
class DataSet:
    """A data set: the entry of Lathe's setting, or None and the reason."""

    source: Source | None
    note: str = ""


def by_name(value: Any, _: Values, folder: Path | None, setting: str) -> Answer:
    """Data sets by path, as a list or separated by blanks, each with an optional number of rows: `rows.jsonl#500`."""
    if folder is None:
        return Answer(None, UPLOAD)
    named = [str(one) for one in value] if isinstance(value, list) else str(value or "").split()
    return answer([_of_name(name, folder) for name in named], setting) if named else IS_EMPTY


def _of_name(name: str, folder: Path) -> DataSet:
    path, _, rows = name.partition("#")
    if is_file(folder / path):
        return DataSet(Source(str(folder / path), max_rows=int(rows) if rows.isdigit() and int(rows) else None))
    on_hub = path.count("/") == 1 and not path.startswith(".") and "." not in path.split("/")[1][-6:]
    return DataSet(None, ON_HUB.format(path) if on_hub else f"{path} is not here.")


def answer(data_sets: list[DataSet], setting: str, settings: Values | None = None) -> Answer:
    """The setting for the data sets that are here, besides `settings`; names the others."""
    settings = settings or {}
    here = [one.source for one in data_sets if one.source and one.source.path]
    missing = [one.note for one in data_sets if one.note]
    if not here:  # of a single data set the mapping is known all the same
        first = data_sets[0].source
        known = (
            {"columns": first.columns} if len(data_sets) == 1 and first and first.columns and setting == "data" else {}
        )
        return Answer(settings | known or None, " ".join(missing))
    note = " ".join(f"{reason} Training leaves it out." for reason in missing)
    if len(here) == 1:
        here = [replace(here[0], weight=None)]
    if len(here) == 1 and setting == "data" and here[0].columns:
        return Answer(settings | {setting: written([replace(here[0], columns=None)]), "columns": here[0].columns}, note)
    try:
        return Answer(settings | {setting: canonical([vars(one) for one in here])}, note)
    except ValueError as error:
        return Answer(None, f"{error}.")


def is_file(path: Path) -> bool:
    """True if there is such a file; False also for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:
        return False


def mapping(columns: dict[str, str]) -> str | None:
    """The mapping as text, unless the columns have the names that Lathe detects."""
    if all(_USUAL.get(role) == path or role == path for role, path in columns.items()):
        return None
    if set(columns) == {"instruction"}:  # a single column is plain text
        columns = {"text": columns["instruction"]}
    text = write_mapping(columns)
    try:
        parse_mapping(text)
    except DataError:
        return None
    return text

"""Choosing the data of a run: a stored data set, the starter sample, a file on the server, or an upload."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from app.access import callers
from app.access.dataset_imports import samples
from app.format import numbers
from app.format.dataset_text import problems_of
from app.pages.new_run import data_columns, data_cost, data_mix
from app.pages.new_run.data_columns import ColumnChoice
from app.texts import _
from app.web.templating import PARTS, filled
from training.config.data_sets import FIELDS, Source, entries, sources, written
from training.config.run_config import RunConfig
from training.data.row_formats import UNKNOWN_FIX
from training.errors import DataError
from worker.datasets import datasets
from worker.store import database
from worker.store.database import UNREACHABLE
from worker.store.tables import Dataset


def choices(*values: str) -> list[tuple[str, str]]:
    """Label and value of each choice: data sets, newest first, the starter samples, and those of `values` that name several."""
    stored = _stored()
    named = [(data_mix.label(value, stored), value) for value in dict.fromkeys(values) if entries(value) is not None]
    return (
        named
        + [(_label(item), item.id) for item in stored.values()]
        + [(_("Starter sample: {name}").format(name=path.name), str(path)) for path in samples()]
    )


def by_label(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings in which a browser kept the label of a choice, since it knows no more of it, with the choice's value."""
    known = dict(choices())
    return {name: known[values[name]] for name in FIELDS if values[name] in known}


def with_samples_stored(config: RunConfig) -> RunConfig:
    """The configuration with sample files stored as data sets, which callers who may not read files can use too."""

    def stored(source: Source) -> Source:
        return replace(source, path=sample_stored(source.path))

    found = {name: sources(getattr(config, name)) for name in FIELDS}
    return config.model_copy(
        update={name: written([stored(source) for source in named]) for name, named in found.items() if named}
    )


def sample_stored(value: str) -> str:
    """The id of the data set as which a sample file is stored; any other value as it is."""
    path = next((path for path in samples() if str(path) == value), None)
    return value if path is None else datasets.add_file(path=path, name=path.name, owner=callers.current().name).id


def store_upload(path: Path) -> tuple[str | None, Markup]:
    """Stores an uploaded file as a data set and deletes the upload.

    Returns the data set's id and its description, or None and what is wrong with the file.
    """
    try:
        item = datasets.add_file(path=path, name=path.name, move=True, owner=callers.current().name)
    except DataError as error:
        return None, error_html(error, path.name)
    finally:
        with suppress(OSError):  # the folder may hold another upload of the same bytes
            path.parent.rmdir()
    return item.id, _filled(item)


def describe(
    value: str,
    model: str = "",
    max_length: str = "",
    columns: str = "",
    validation: str = "",
    task: str = "sft",
    prompts: str = "",
) -> tuple[Markup, bool]:
    """The data that the settings name, with truncated and repeated rows; True while data sets are being tokenized.

    Nothing for an empty setting. `prompts` is not empty if the tokens of prompts carry loss too.
    """
    if not value:
        return Markup(""), False
    stored = _stored()
    found = entries(value)
    if found is None and value not in stored:
        is_sample = value in map(str, samples())
        source = _("Sample data that comes with Lathe.") if is_sample else _("File on the server.")
        checked = _("Lathe checks it here up to 20 MiB, and a larger one when you press Start.")
        return PARTS.note(f"{source} {checked}"), False
    named = _mappings(value, columns)
    items = [(stored[path], mapping) for path, mapping in named if path in stored]
    choices = _column_choices(value, columns, task, stored)
    unmapped = {choice.item.id for choice in choices if not choice.is_set}
    costs = [data_cost.cost(item, model, max_length, mapping, task, prompts=bool(prompts)) for item, mapping in items]
    held_out = [stored[path] for path in _paths(validation) if path in stored]
    shown = _filled(
        item=items[0][0] if found is None else None,
        sets=data_mix.mixed(found or [], stored),
        choices=choices,
        costs=[cost for cost in costs if cost and cost.item.id not in unmapped],
        repeated=list(data_cost.repeated([item for item, mapping in items], held_out, model, columns)),
        others=[item for item in stored.values() if item.id not in dict(named)],
    )
    return shown, any(cost.tokens.status == "running" for cost in costs if cost)


def change_columns(value: str, columns: str, task: str, change: Mapping[str, Any]) -> tuple[str, str]:
    """The settings `data` and `columns` after a change of the mapping of one data set."""
    place, stored, named = change.get("set"), _stored(), _mappings(value, columns)
    alone = entries(value) is None
    index = 0 if alone else place
    if not isinstance(index, int) or index not in range(len(named)) or named[index][0] not in stored:
        return value, columns
    path, mapping = named[index]
    line = data_columns.changed(stored[path], mapping, task, change)
    if alone:
        return value, line
    return data_mix.changed(value, {"set": place, "key": "columns", "value": line}), columns


def fitting_columns(value: str, columns: str) -> str:
    """The setting `columns` if the data set that `data` names has these columns; else none."""
    return data_columns.still_fitting(columns, _stored().get(value)) if columns else ""


def _mappings(value: str, columns: str) -> list[tuple[str, str]]:
    """The path or id of each data set, with the mapping that the run gives it."""
    return [
        (str(entry.get("path")), str(entry.get("columns") or columns)) for entry in entries(value) or [{"path": value}]
    ]


def _column_choices(value: str, columns: str, task: str, stored: Mapping[str, Dataset]) -> list[ColumnChoice]:
    alone = entries(value) is None
    choices = [
        data_columns.choice(stored[path], mapping, task, data_columns.ALONE if alone else place)
        for place, (path, mapping) in enumerate(_mappings(value, columns))
        if path in stored
    ]
    return [choice for choice in choices if choice]


def _paths(value: str) -> list[str]:
    found = entries(value)
    return [value] if found is None else [str(entry.get("path")) for entry in found]


def _filled(item: Dataset | None, **more: Any) -> Markup:
    return filled(
        "new_run/data.html",
        UNKNOWN_FIX=UNKNOWN_FIX,
        **{"item": item, "sets": (), "costs": (), "choices": (), "repeated": (), "others": (), **more},
    )


def error_html(error: DataError, name: str) -> Markup:
    """Why a file cannot be used: the row and field, the problem and the fix."""
    named = ((_("row"), error.line), (_("field"), error.field))
    place = ", ".join(f"{noun} {value}" for noun, value in named if value)
    message = f"({place}) {error.message}" if place else error.message
    return PARTS.alert(name, message, error.fix) + PARTS.issues(problems_of(error)[1:])


def _stored() -> dict[str, Dataset]:
    """All data sets by id, the newest first; none while the database is unreachable, so that the form stays usable."""
    try:
        with database.read() as session:
            return {item.id: item for item in datasets.listing(session=session)}
    except UNREACHABLE:
        return {}


def _label(item: Dataset) -> str:
    warnings = f", {numbers.plural(len(item.warnings), 'warning', 'warnings')}" if item.warnings else ""
    return f"{item.name} ({numbers.plural(item.rows, 'row', 'rows')}, {item.row_format}{warnings})"

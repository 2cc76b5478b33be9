"""Choosing the data of a run: an earlier data set, the starter sample, a file on the server, or an upload."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from app import callers, text, uploads
from app.dataset_words import problems_of
from app.pages import data_cost
from app.pages.dataset_parts import issues_html
from app.pages.parts import ago, each, facts, table
from training.config import RunConfig
from training.failure import DataError
from training.files import FORMATS
from worker import database, datasets
from worker.models import Dataset
from worker.patience import UNREACHABLE
from worker.settings import ROOT

FILE_TYPES = [f".{name}" for name in (*FORMATS, "gz")]
_STARTER = ROOT / "static" / "starter"
_ROWS_SHOWN, _CELL_CHARACTERS = 3, 240


def upload_box(*, several: bool = False) -> gr.File:
    """Where a file is dropped. Its handlers get the path; Gradio's own way there leaves an empty file behind each time.

    With `several` there may be many, and handlers get a list of paths.
    """
    label = f"Add a data set: {', '.join(FILE_TYPES)}"
    many: Any = "multiple" if several else "single"
    box = gr.File(
        label=label, file_count=many, file_types=FILE_TYPES, height=64, elem_classes="upload", elem_id="upload"
    )
    return uploads_only(box)


def uploads_only(box: gr.File) -> gr.File:
    """The component, whose handlers get the path of an upload (a list of them where several may come), and no other path.

    Gradio's own way there leaves an empty file behind each time.
    """
    folder = uploads.folder()

    def paths_of(payload: Any) -> str | list[str] | None:
        if payload is None:
            return None
        listed = payload.root if hasattr(payload, "root") else [payload]
        paths = [str(uploads.uploaded_file(str(file.path), folder)) for file in listed]
        return paths if box.file_count == "multiple" else paths[0]

    # On the instance: for a subclass Gradio would write a stub file into this folder.
    box.preprocess = paths_of  # type: ignore[method-assign]
    return box


def choices() -> list[tuple[str, str]]:
    """What can be picked, newest first, then the starter sample: what is shown, and the value of the setting."""
    earlier = [(_named(item), item.id) for item in _known()]
    return earlier + [(f"Starter sample: {path.name}", str(path)) for path in samples()]


def samples() -> list[Path]:
    """The sample data that comes with the program."""
    return sorted(_STARTER.glob("*.jsonl"), reverse=True)


def with_samples_stored(config: RunConfig) -> RunConfig:
    """The configuration with sample files as data sets: they may be used also where other files of the server may not."""
    ours, owner = {str(path): path for path in samples()}, callers.current().name
    used = {name: ours[value] for name in ("data", "validation_data") if (value := getattr(config, name)) in ours}
    return config.model_copy(
        update={name: datasets.add_file(path=path, name=path.name, owner=owner).id for name, path in used.items()}
    )


def take_in(path: Path) -> tuple[str | None, Markup]:
    """Keeps an uploaded file as a data set. Returns its id and what was found in it, or None and what is wrong with it.

    The upload itself is gone afterwards, either way.
    """
    try:
        kept = datasets.add_file(path=path, name=path.name, move=True, owner=callers.current().name)
    except DataError as error:
        return None, refused(error, path.name)
    finally:
        with suppress(OSError):  # another upload of the same bytes may still be in it
            path.parent.rmdir()
    return kept.id, found(kept)


def describe(value: str, model: str = "", max_length: str = "", columns: str = "") -> Markup:
    """What is known of the data that a setting names, and what the other settings make of it; nothing for an empty one."""
    if not value:
        return Markup("")
    known = next((item for item in _known() if item.id == value), None)
    if known is not None:
        return found(known, data_cost.cost(known, model, max_length, columns))
    whose = "The sample data that comes with Lathe" if value in map(str, samples()) else "A file on the server"
    return Markup('<p class="note">{}: it is read and checked when the run is started.</p>').format(whose)


def found(item: Dataset, cost: Markup | str = "") -> Markup:
    """What a data set holds: format, size, warnings and its first rows; `cost` is what the other settings make of it."""
    known = [
        ("Data set", Markup('<a href="/dataset?id={}">{}</a>').format(item.id, item.name)),
        ("Format", f"{item.shape} ({item.format})"),
        ("Rows", text.count(item.rows)),
        ("Size", text.byte_size(item.bytes)),
        ("Owner", item.owner),
        ("Added", ago(item.created_at)),
    ]
    return Markup('<div class="found">{}{}{}{}</div>').format(
        facts(known), issues_html(item.warnings or []), cost, _sample(item)
    )


def refused(error: DataError, name: str) -> Markup:
    """Why a file cannot be used, where in it, and what to do."""
    place = ", ".join(f"{word} {where}" for word, where in (("row", error.line), ("field", error.field)) if where)
    others = problems_of(error)[1:]
    return Markup('<div class="alert" role="alert"><b>{}</b>{} {} <em>{}</em></div>{}').format(
        name, f" ({place})" if place else "", error.message, error.fix, issues_html(others)
    )


def _known() -> list[Dataset]:
    """The earlier data sets; none while the database does not answer, which must not empty somebody's form."""
    try:
        with database.read() as session:
            return datasets.listing(session=session)
    except UNREACHABLE:
        return []


def _named(item: Dataset) -> str:
    warned = f", {text.plural(len(item.warnings), 'warning')}" if item.warnings else ""
    return f"{item.name} ({text.plural(item.rows, 'row')}, {item.shape}{warned})"


def _sample(item: Dataset) -> Markup:
    columns = item.columns[:8]
    heads = each("<th>{}</th>", [(column,) for column in columns])
    lines = [
        each("<td>{}</td>", [(_cell(row.get(column)),) for column in columns]) for row in item.sample[:_ROWS_SHOWN]
    ]
    return table("sample", heads, each("<tr>{}</tr>", [(line,) for line in lines]))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.shorten(written, _CELL_CHARACTERS)

"""REST routes of data sets: list, import, check, read, map, delete."""

from typing import Annotated, Any

from fastapi import Body, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app.access import callers, changes
from app.documents import dataset as document
from app.documents import rows as rows_document
from app.documents.dataset import BRIEF
from app.web.rest.data.received import Received, in_process, received
from app.web.rest.routing import Answer, BodyForm, JsonRouter, Limit, Offset, answers, columns
from training.data.survey import Issue
from worker.datasets import datasets, row_pages, row_search
from worker.datasets.checking import check_file
from worker.datasets.row_search import LONGEST_TEXT
from worker.store import database
from worker.store.tables import Dataset, Status


@columns(Dataset, BRIEF)
class DatasetInList(Answer):
    """A data set in a list. `used_by` is the number of runs that use it, `warning_kinds` that of its kinds of warnings."""

    format: str = Field(description="format of the rows, such as messages or prompt/completion; unknown if none fits")
    file_format: str
    used_by: int
    warning_kinds: int


class DatasetList(Answer):
    """The data sets that match, newest first, and how many match in all."""

    datasets: list[DatasetInList]
    total: int


class User(Answer):
    """A run that uses a data set; of a run that the caller does not see, only its status."""

    id: str
    name: str
    status: Status


@columns(Dataset, (*BRIEF, "sha256", "reason", "counts", "columns", "columns_map", "sample"))
class DatasetAnswer(Answer):
    """A data set with its warnings, its first rows and the runs that use it, newest first."""

    format: str = Field(description="format of the rows, such as messages or prompt/completion; unknown if none fits")
    file_format: str
    warnings: list[Issue]
    unused_columns: list[str] = Field(description="columns that training does not use")
    runs: list[User]


class Check(Answer):
    """The report on a file; nothing was stored. `suggestion` is a column mapping that fits the first rows, if one does."""

    file_format: str
    format: str
    reason: str
    rows: int
    columns: list[str]
    counts: dict[str, int] = Field(description="rows of each format")
    empty_rows: int
    trainable: bool = Field(description="true if there are no errors")
    suggestion: str
    unused: list[str] = Field(description="columns that training does not use")
    problems: list[Issue]


class RowAnswer(Answer):
    """A row with its number from 1; `cut` names the columns whose values are shortened."""

    row: int
    values: dict[str, Any]
    cut: list[str]
    problem: str = Field(default="", description="why the row cannot be read")
    fix: str = ""


class Rows(Answer):
    """Rows of a data set. `next` is the offset of the rows after them, null at the end.

    Answers to a search have `complete` (false while it continues in the background), `more` (true if it stopped at 1,000 rows) and
    `searched` (rows read).
    """

    rows: list[RowAnswer]
    offset: int
    total: int = Field(description="rows of the data set; of a search, rows found so far")
    next: int | None
    complete: bool | None = None
    more: bool | None = None
    searched: int | None = None


router = JsonRouter(prefix="/api/datasets")

UPLOADS = ("/api/datasets", "/api/datasets/check")
"""The addresses to which files are sent."""

_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file itself with its `name` in the address, or a form with one or more files as `file`.",
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "properties": {"file": {"type": "string"}}}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
Name = Annotated[str | None, Query(max_length=500, description="The file's name. Default: the one in the form.")]
Columns = Annotated[
    str | None, Query(max_length=2000, description="Column of each role: prompt=question, completion=answer.")
]
_SEARCH_SECONDS = 10.0


class Mapping(BodyForm):
    """The column mapping of a data set; null returns to the detected format."""

    columns: str | None


class Search(BodyForm):
    """The text of a search."""

    search: str = Field(min_length=1, max_length=LONGEST_TEXT)


@router.get("", **answers(DatasetList))
def list_datasets(
    search: Annotated[str, Query(description="Only data sets with these words in name, format or id.")] = "",
    limit: Limit = 200,
    offset: Offset = 0,
) -> dict[str, Any]:
    """The data sets, newest first, and how many match in all."""
    with database.read() as session:
        found = document.listing(session, search, limit, offset)
        return {"datasets": found, "total": document.count(session, search)}


@router.post("", status_code=201, openapi_extra=_BODY, **answers(DatasetAnswer, 201))
async def import_dataset(request: Request, name: Name = None, columns: Columns = None) -> dict[str, Any]:
    """Imports a file as a data set; several files become one. The same content is stored once.

    Raises:
        DataError: a file has errors; answered with 422 and all problems, and nothing is stored.
    """
    async with received(request, name, callers.current().name) as files:
        return await run_in_threadpool(_import, files, name, columns)


@router.post("/check", openapi_extra=_BODY, **answers(Check))
async def check_dataset(request: Request, name: Name = None, columns: Columns = None) -> dict[str, Any]:
    """Checks a file: its format, rows and problems. Stores nothing."""
    async with received(request, name) as files:
        inspection = await run_in_threadpool(check_file, files.paths[0], name or files.names[0], columns)
    return document.inspected(inspection)


@router.get("/{dataset_id}", **answers(DatasetAnswer))
def show_dataset(dataset_id: str) -> dict[str, Any]:
    """One data set with its warnings, its first rows and the runs that use it."""
    with database.read() as session:
        return document.document(session, dataset_id)


@router.get("/{dataset_id}/rows", **answers(Rows))
def show_rows(
    request: Request,
    dataset_id: str,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=rows_document.MOST)] = 25,
    search: Annotated[str, Query(max_length=LONGEST_TEXT)] = "",
    wait: Annotated[
        float, Query(ge=0, le=_SEARCH_SECONDS, description="Seconds to wait for rows of a search.")
    ] = _SEARCH_SECONDS,
) -> dict[str, Any]:
    """Rows of a data set, or those that contain a text. A long search continues in the background: `complete` is then false."""
    item = _item(dataset_id)
    if not in_process(request):
        row_pages.prepare(datasets.path_of(item))
    return rows_document.document(item, offset, limit, search, seconds=wait)


@router.post("/{dataset_id}/rows/stop", status_code=204)
def stop_search(dataset_id: str, search: Annotated[Search, Body()]) -> None:
    """Stops a search of the rows for everybody; the rows found stay, and the next request for it searches again."""
    row_search.search(datasets.path_of(_item(dataset_id)), search.search).stop()


@router.patch("/{dataset_id}", **answers(DatasetAnswer))
def map_dataset(dataset_id: str, mapping: Annotated[Mapping, Body()]) -> dict[str, Any]:
    """Saves the column mapping of a data set.

    Raises:
        DataError: the rows cannot be used with it; answered with 422, and the old mapping stays.
    """
    item = _item(dataset_id)
    changes.save_mapping(item.id, mapping.columns)
    return show_dataset(item.id)


@router.delete("/{dataset_id}", status_code=204)
def delete_dataset(dataset_id: str) -> None:
    """Deletes a data set; ended runs keep their results."""
    changes.remove_dataset(_item(dataset_id).id)


def _import(files: Received, name: str | None, columns: str | None) -> dict[str, Any]:
    owner = callers.current().name
    if len(files.paths) > 1:
        item = datasets.add_many(paths=files.paths, names=files.names, owner=owner)
    else:
        path, given = files.paths[0], name or files.names[0]
        item = datasets.add(path=path, name=given, columns=columns, owner=owner).dataset
    if columns and item.columns_map != columns:  # the file was already stored, or there are several
        changes.save_mapping(item.id, columns)
    return show_dataset(item.id)


def _item(dataset_id: str) -> Dataset:
    with database.read() as session:
        return document.find(session, dataset_id)

"""REST routes of data sets: list, import from files, the hub, the server's folders and the sample, check, read, map, delete."""

from functools import partial
from typing import Annotated

from fastapi import Body, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app.access import callers, dataset_imports
from app.access.dataset_imports import Intake, intakes
from app.access.permissions import own_dataset
from app.documents import dataset as documents
from app.documents import rows as rows_document
from app.documents.rows import Rows
from app.web.rest.received import Received, in_process, received
from app.web.rest.routing import BodyForm, JsonRouter, Limit, Offset, PathText, Reading
from training.config.fields import ConfigError
from training.errors import Problem
from worker.datasets import datasets, row_pages, row_search
from worker.datasets.row_search import LONGEST_TEXT
from worker.store import database

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

    columns: PathText | None


class Search(BodyForm):
    """The text of a search."""

    search: str = Field(min_length=1, max_length=LONGEST_TEXT)


class HubData(BodyForm):
    """A split of a public data set on the hub."""

    name: str = Field(min_length=1, max_length=200, description="owner/name")
    split: str = Field(default="train", max_length=100)
    config: str = Field(default="", max_length=100, description="configuration, if the data set has several")
    revision: str = Field(default="", max_length=100, description="branch, tag or commit; default: the main branch")


class NewImport(BodyForm):
    """What to import: a data set on the hub, a file in a folder of the server (one of `GET /api/datasets/files`), or the sample."""

    hub: HubData | None = None
    file: str | None = Field(default=None, max_length=4000)
    sample: bool = False


@router.get("")
def list_datasets(
    session: Reading,
    search: Annotated[
        str, Query(max_length=200, description="Only data sets with these words in name, format or id.")
    ] = "",
    limit: Limit = 200,
    offset: Offset = 0,
) -> documents.DatasetList:
    """The data sets, newest first, and how many match in all."""
    return documents.listing(session, search, limit, offset)


@router.post("", status_code=201, openapi_extra=_BODY)
async def import_dataset(request: Request, name: Name = None, columns: Columns = None) -> documents.DatasetAnswer:
    """Imports a file as a data set; several files become one. The same content is stored once."""
    async with received(request, name, callers.current().name) as files:
        return await run_in_threadpool(_import, files, name, columns)


@router.post("/check", openapi_extra=_BODY)
async def check_dataset(request: Request, name: Name = None, columns: Columns = None) -> documents.Check:
    """Checks a file, or several as the data set that they become: its format, rows and problems. Stores nothing."""
    async with received(request, name) as files:
        names = [name] if name and len(files.paths) == 1 else files.names
        check = partial(datasets.check_many, paths=files.paths, names=names, columns=columns)
        inspection = await run_in_threadpool(check)
    return documents.Check.model_validate(inspection)


@router.get("/files")
def list_files() -> documents.Files:
    """The files in the server's data folders (LATHE_DATA_FOLDERS), which can be imported without sending them."""
    return documents.Files(files=dataset_imports.folder_choices(), reason=dataset_imports.folder_reason())


@router.post("/imports", status_code=202)
def start_import(wanted: Annotated[NewImport, Body()]) -> documents.ImportAnswer:
    """Starts to import a data set from the hub, a folder of the server or the sample; `/api/datasets/imports/ID` has its state."""
    if (wanted.hub is not None) + (wanted.file is not None) + wanted.sample != 1:
        fix = 'Send {"hub": {"name": "owner/name"}}, {"file": "folder/rows.jsonl"} or {"sample": true}.'
        raise ConfigError([Problem("body", None, "names none or several of hub, file and sample.", fix)])
    return _import_answer(intakes.get(_begun(wanted)))


@router.get("/imports")
def list_imports() -> documents.ImportList:
    """The imports in the background, those that pages started too, oldest first."""
    return documents.ImportList(imports=[_import_answer(intake) for intake in intakes.all()])


@router.get("/imports/{import_id}")
def show_import(import_id: int) -> documents.ImportAnswer:
    """The state of an import: its data sets once it is done, or its problems."""
    return _import_answer(intakes.get(import_id))


@router.delete("/imports/{import_id}", status_code=204)
def dismiss_import(import_id: int) -> None:
    """Removes an import that has ended from the list; its data sets stay."""
    intakes.get(import_id)
    intakes.dismiss(import_id)


@router.get("/{dataset_id}")
def show_dataset(dataset_id: str, session: Reading) -> documents.DatasetAnswer:
    """One data set with its warnings, its first rows and the runs that use it."""
    return documents.document(session, dataset_id)


@router.get("/{dataset_id}/rows")
def show_rows(
    request: Request,
    dataset_id: str,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=rows_document.MOST)] = 25,
    search: Annotated[str, Query(max_length=LONGEST_TEXT)] = "",
    wait: Annotated[
        float, Query(ge=0, le=_SEARCH_SECONDS, description="Seconds to wait for rows of a search.")
    ] = _SEARCH_SECONDS,
) -> Rows:
    """Rows of a data set, or those that contain a text. A long search continues in the background: `complete` is then false."""
    item = documents.stored(dataset_id)
    if not in_process(request):
        row_pages.prepare(datasets.path_of(item))
    return rows_document.document(item, offset, limit, search, seconds=wait)


@router.post("/{dataset_id}/rows/stop", status_code=204)
def stop_search(dataset_id: str, search: Annotated[Search, Body()]) -> None:
    """Stops a search of the rows for everybody; the rows found stay, and the next request for it searches again."""
    row_search.search(datasets.path_of(documents.stored(dataset_id)), search.search).stop()


@router.patch("/{dataset_id}")
def map_dataset(dataset_id: str, mapping: Annotated[Mapping, Body()]) -> documents.DatasetAnswer:
    """Saves the column mapping of a data set."""
    own = own_dataset(dataset_id)
    datasets.save_mapping(own, mapping.columns)
    return _document(own)


@router.delete("/{dataset_id}", status_code=204)
def delete_dataset(dataset_id: str) -> None:
    """Deletes a data set; ended runs keep their results. It stays with other users who uploaded the same file."""
    user, item = callers.current().name, documents.stored(dataset_id)
    with database.read() as session:
        uploaded = user in datasets.uploaded_by(session=session, dataset_id=item.id)
    if not uploaded:
        own_dataset(item.id)
    with database.write() as session:
        datasets.remove(session=session, dataset_id=item.id, user=user)


def _import(files: Received, name: str | None, columns: str | None) -> documents.DatasetAnswer:
    owner = callers.current().name
    if len(files.paths) > 1:
        item = datasets.add_many(paths=files.paths, names=files.names, owner=owner)
    else:
        path, given = files.paths[0], name or files.names[0]
        item = datasets.add(path=path, name=given, columns=columns, owner=owner).dataset
    if columns and item.columns_map != columns:  # the file was already stored, or there are several
        datasets.save_mapping(own_dataset(item.id), columns)
    return _document(item.id)


def _document(dataset_id: str) -> documents.DatasetAnswer:
    with database.read() as session:
        return documents.document(session, dataset_id)


def _begun(wanted: NewImport) -> int:
    if wanted.sample:
        return dataset_imports.from_sample()
    if wanted.hub is None:
        return dataset_imports.from_folder(wanted.file or "")
    if reason := dataset_imports.hub_reason():
        message, _, fix = reason.partition(". ")
        raise ConfigError([Problem("hub", wanted.hub.name, f"cannot be downloaded. {message}.", fix)])
    hub = wanted.hub
    return dataset_imports.from_hub(hub.name.strip(), hub.split.strip(), hub.config.strip(), hub.revision.strip())


def _import_answer(intake: Intake) -> documents.ImportAnswer:
    values = {name: getattr(intake, name) for name in ("id", "name", "owner", "state", "bytes", "since")}
    problems = [documents.ImportProblem(**problem) for problem in intake.problems]
    return documents.ImportAnswer(
        **values, problems=problems, datasets=[documents.Added(id=one, name=name) for one, name in intake.added]
    )

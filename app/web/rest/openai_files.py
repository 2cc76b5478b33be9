"""OpenAI's API for files: data sets, by the form that its clients send."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from app.access import callers
from app.documents import fine_tuning as documents
from app.documents.fine_tuning import FILE, PURPOSE
from app.web.rest.datasets import delete_dataset
from app.web.rest.received import Received, received
from training.errors import DataError, UserError
from worker.datasets import datasets
from worker.file_store import dataset_files
from worker.store import database
from worker.store.tables import Dataset

router = APIRouter(include_in_schema=False)

PROMPTS_ALONE = "prompt=messages"
"""The mapping of rows whose last turn is the user's."""
_MESSAGES = "messages"

Json = dict[str, Any]
Limit = Annotated[int, Query(ge=1, le=10_000)]
Text = Annotated[str | None, Query(max_length=200)]


@router.post("/v1/files")
async def add_file(request: Request) -> Json:
    """Stores a file for fine-tuning, and checks its rows."""
    async with received(request, None, callers.current().name) as files:
        return documents.file(await run_in_threadpool(_added, files))


def _added(files: Received) -> Dataset:
    purpose = files.fields.get("purpose")
    if purpose != PURPOSE:
        raise UserError("purpose", purpose, "has no use here.", f"Give {PURPOSE}.")
    path, name, owner = files.paths[0], files.names[0], callers.current().name
    try:
        return datasets.add(path=path, name=name, owner=owner).dataset
    except DataError as refused:
        try:  # the rows of reinforcement have no answer
            return datasets.add(path=path, name=name, owner=owner, columns=PROMPTS_ALONE).dataset
        except DataError:
            raise refused from None


@router.get("/v1/files")
def list_files(after: Text = None, limit: Limit = 10_000, order: Text = None, purpose: Text = None) -> Json:
    """The files, the newest first unless `order` is asc."""
    if order not in (None, "asc", "desc"):
        raise UserError("order", order, "is not an order.", "Give asc or desc.")
    with database.read() as session:
        items = datasets.listing(session=session) if purpose in (None, PURPOSE) else []
    ordered = items[::-1] if order == "asc" else items
    return documents.page_of(ordered, after, limit, lambda item: f"{FILE}{item.id}", documents.file)


@router.get("/v1/files/{file_id}")
def show_file(file_id: str) -> Json:
    """A file."""
    return documents.file(stored(file_id, "file_id"))


@router.get("/v1/files/{file_id}/content", response_model=None)
def send_file(file_id: str) -> FileResponse:
    """The content of a file as it was sent."""
    item = stored(file_id, "file_id")
    path = datasets.path_of(item)
    if not dataset_files.present(path, item.sha256):
        raise datasets.DatasetNotFound("file_id", file_id, "has no content here.", "Send the file again.")
    headers = {"Cache-Control": "private, no-store"}
    return FileResponse(path, media_type="application/octet-stream", filename=item.name, headers=headers)


@router.delete("/v1/files/{file_id}")
def delete_file(file_id: str) -> Json:
    """Deletes a file; jobs that have ended keep their results."""
    delete_dataset(stored(file_id, "file_id").id)
    return {"id": file_id, "object": "file", "deleted": True}


def stored(file_id: str, field: str) -> Dataset:
    """The data set of a file's id; `field` is the parameter that gives it. Raises NotFound if there is none."""
    dataset_id = documents.own_id(file_id, FILE, field)
    with database.read() as session:
        try:
            return datasets.get(session=session, dataset_id=dataset_id)
        except datasets.DatasetNotFound:
            fix = "GET /v1/files lists the files."
            raise datasets.DatasetNotFound(field, file_id, "does not exist.", fix) from None


def is_prompts(item: Dataset) -> bool:
    """True if its rows are conversations that reinforcement continues."""
    return _MESSAGES in item.columns

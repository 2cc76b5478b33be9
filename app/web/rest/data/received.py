"""Files in the body of a request: one as the body itself, or several as a form (multipart/form-data)."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from training.errors import UserError

MOST_FILES = 64
_FORM = "multipart/form-data"


class NoFile(UserError):  # noqa: N818
    """The body holds no file, or a file without a name."""


@dataclass
class Received:
    """The files of a request with their names, and the other fields of its form."""

    paths: list[Path] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def received(request: Request, name: str | None) -> AsyncIterator[Received]:
    """The files of a request, in a folder that is deleted afterwards; `name` is that of a file which is the body itself.

    Raises:
        NoFile: there is no file, or it has no name.
    """
    folder = Path(tempfile.mkdtemp(dir=request.app.state.uploads, prefix="rest-"))
    try:
        if request.headers.get("content-type", "").startswith(_FORM):
            async with request.form(max_files=MOST_FILES) as form:
                files = await run_in_threadpool(_stored, form, folder)
        else:
            files = await _streamed(request, folder / "0", name)
        yield files
    finally:
        await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)


def _stored(form: FormData, folder: Path) -> Received:
    """The files of a form with the key `file`."""
    found = Received(fields={key: value for key, value in form.multi_items() if isinstance(value, str)})
    for number, part in enumerate(form.getlist("file")):
        if isinstance(part, UploadFile) and part.filename:
            path = folder / str(number)
            with path.open("wb") as target:
                shutil.copyfileobj(part.file, target)
            found.paths.append(path)
            found.names.append(part.filename)
    if not found.paths:
        raise NoFile("file", None, "is missing.", "Send the file as `file`, for example with curl -F file=@rows.jsonl.")
    return found


async def _streamed(request: Request, path: Path, name: str | None) -> Received:
    if not name:
        raise NoFile("name", None, "is missing.", "Add ?name=rows.jsonl to the address; the ending tells the format.")
    with path.open("wb") as target:
        async for chunk in request.stream():
            target.write(chunk)
    return Received([path], [name])

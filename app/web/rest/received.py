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
from worker import disk_quota
from worker.disk_quota import DiskQuota
from worker.store.tables import LOCAL

MOST_FILES = 64
_MOST_FIELDS = 4
"""Fields that are no files: each takes up to 1 MB of memory."""
_FORM = "multipart/form-data"


class NoFile(UserError):  # noqa: N818
    """The body holds no file, or a file without a name."""


class OverQuota(UserError):  # noqa: N818
    """The body is larger than what its sender may still use on disk."""


@dataclass
class Received:
    """The files of a request with their names."""

    paths: list[Path] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    """The fields of a form that are no files."""


def in_process(request: Request) -> bool:
    """True if a command calls the routes in its own process (app/cli/in_process.py); its request may name files of this machine."""
    return hasattr(request.state, "files")


@asynccontextmanager
async def received(request: Request, name: str | None, owner: str = LOCAL) -> AsyncIterator[Received]:
    """The files of a request, in a folder that is deleted afterwards; `name` is that of a file which is the body itself.
    A command of this machine names them instead.

    They are stored for `owner` later; what has no place in the owner's quota is not received to its end.

    Raises:
        NoFile: there is no file, or it has no name.
        OverQuota: the body is too large for the owner's quota.
    """
    if in_process(request):
        yield Received([*request.state.files], [file.name for file in request.state.files])
        return
    quota = await run_in_threadpool(disk_quota.measured, owner)
    _refuse_over(quota, int(request.headers.get("content-length") or 0))
    folder = Path(tempfile.mkdtemp(dir=request.app.state.uploads, prefix="rest-"))
    try:
        if request.headers.get("content-type", "").startswith(_FORM):
            async with request.form(max_files=MOST_FILES, max_fields=_MOST_FIELDS) as form:
                files = await run_in_threadpool(_stored, form, folder, quota)
        else:
            files = await _streamed(request, folder / "0", name, quota)
        yield files
    finally:
        await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)


def _refuse_over(quota: DiskQuota, length: int) -> None:
    if message := quota.refusal(length):
        raise OverQuota("body", None, message, disk_quota.FIX)


def _stored(form: FormData, folder: Path, quota: DiskQuota) -> Received:
    """The files of a form with the key `file`."""
    found = Received(fields={name: value for name, value in form.items() if isinstance(value, str)})
    parts = form.getlist("file")
    _refuse_over(quota, sum(part.size or 0 for part in parts if isinstance(part, UploadFile)))
    for number, part in enumerate(parts):
        if isinstance(part, UploadFile) and part.filename:
            path = folder / str(number)
            with path.open("wb") as target:
                shutil.copyfileobj(part.file, target)
            found.paths.append(path)
            found.names.append(part.filename)
    if not found.paths:
        raise NoFile("file", None, "is missing.", "Send the file as `file`, for example with curl -F file=@rows.jsonl.")
    return found


async def _streamed(request: Request, path: Path, name: str | None, quota: DiskQuota) -> Received:
    if not name:
        raise NoFile("name", None, "is missing.", "Add ?name=rows.jsonl to the address; the ending tells the format.")
    length = 0
    with path.open("wb") as target:
        async for chunk in request.stream():
            length += len(chunk)
            _refuse_over(quota, length)
            target.write(chunk)
    return Received([path], [name])

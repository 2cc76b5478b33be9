"""Data sets: files that were checked (worker/checking.py), kept once per content under a name of ours."""

import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sqlalchemy import ColumnElement, or_
from sqlmodel import Session, col, select

from training.failure import DataError
from worker import database
from worker.checking import check_file
from worker.models import Dataset, Run
from worker.settings import get_settings
from worker.units import size

ID_LENGTH = 16
CHUNK = 2**20
SPARE_BYTES = 64 * 2**20  # left free besides the copy
LEFTOVER_SECONDS = 3600
_INCOMING = ".incoming-"


class DatasetNotFound(LookupError):  # noqa: N818
    """No data set has that id."""


class DatasetInUse(ValueError):  # noqa: N818
    """A queued or running run trains on it."""


@dataclass(frozen=True)
class Added:
    """A data set in store; `new` says whether it was not there before."""

    dataset: Dataset
    new: bool


def add_file(*, path: Path, name: str, move: bool = False) -> Dataset:
    """Checks a file and takes a copy of it into the store; `name` is what people see. The same bytes are stored once.

    With `move` the file is ours from the start: it is gone afterwards, stored or refused.

    Raises:
        DataError: the file is too large, does not fit on the disk, or cannot train; nothing of it is kept.
    """
    return add(path=path, name=name, move=move).dataset


def add(*, path: Path, name: str, move: bool = False) -> Added:
    """`add_file`, saying whether the data set is new."""
    name = _plain_name(name)
    with _incoming(path, name, move) as (copy, digest):
        known = _known(digest)
        if known is not None and path_of(known).is_file():
            return Added(known, new=False)
        found = check_file(copy, name)
        return Added(_store(copy, digest, name, found), new=known is None)


def listing(*, session: Session) -> list[Dataset]:
    """All data sets, the newest first."""
    return list(session.exec(select(Dataset).order_by(col(Dataset.created_at).desc(), col(Dataset.id))))


def get(*, session: Session, dataset_id: str) -> Dataset:
    """The data set with that id.

    Raises:
        DatasetNotFound: there is none.
    """
    found = session.get(Dataset, dataset_id)
    if found is None:
        raise DatasetNotFound(f"No data set has the id {dataset_id!r}. The page New run lists them all.")
    return found


def path_of(dataset: Dataset) -> Path:
    """Where the file lies on this machine."""
    return get_settings().datasets_dir / f"{dataset.id}.{dataset.format}"


def delete(*, session: Session, dataset_id: str) -> None:
    """Deletes a data set, and its file once that is committed. Runs that have ended keep all but the link to it.

    Raises:
        DatasetNotFound: there is none.
        DatasetInUse: a queued or running run needs it.
    """
    dataset = get(session=session, dataset_id=dataset_id)
    users = session.exec(select(Run).where(_uses(dataset_id))).all()
    waiting = [run.id for run in users if not run.status.ended]
    if waiting:
        raise DatasetInUse(
            f"{dataset.name} is needed by {', '.join(waiting)}. Stop what needs it before you delete it."
        )
    for run in users:
        run.dataset_id = None
        session.add(run)
    session.flush()
    session.delete(dataset)
    path = path_of(dataset)
    database.after_commit(session, lambda: path.unlink(missing_ok=True))


def remove_leftovers() -> None:
    """Removes what a process that was killed while it took in a file left behind."""
    settings = get_settings()
    for file in [*settings.datasets_dir.glob(f"{_INCOMING}*"), *settings.uploads_dir.glob("*")]:
        if file.is_file() and time.time() - file.stat().st_mtime > LEFTOVER_SECONDS:
            file.unlink(missing_ok=True)


def _uses(dataset_id: str) -> ColumnElement[bool]:
    held_out = cast(Any, col(Run.config))["validation_data"].as_string() == dataset_id
    return or_(col(Run.dataset_id) == dataset_id, held_out)


def _known(digest: str) -> Dataset | None:
    with database.read() as session:
        return session.exec(select(Dataset).where(Dataset.sha256 == digest)).first()


def _plain_name(name: str) -> str:
    """The last part of an uploader's file name, printable, at most 200 characters. Never used on disk."""
    printable = "".join(letter for letter in name.replace("\\", "/").rsplit("/", 1)[-1] if letter.isprintable())
    return printable[-200:] or "data"


@contextmanager
def _incoming(path: Path, name: str, move: bool) -> Iterator[tuple[Path, str]]:
    """A copy of the file in the store's folder with its SHA-256; removed at the end unless it was renamed."""
    folder = get_settings().datasets_dir
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = folder / f"{_INCOMING}{secrets.token_hex(8)}"
    try:
        _refuse_unfit(path, name, folder)
        try:
            digest = _copy(path, copy)
        except OSError as error:
            raise DataError(
                f"cannot be copied: {error.strerror}.", "Check the file and the disk's space.", file=name
            ) from None
        yield copy, digest
    finally:
        copy.unlink(missing_ok=True)
        if move:
            path.unlink(missing_ok=True)


def _refuse_unfit(path: Path, name: str, folder: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror}.", "Check the path and its permissions.", file=name
        ) from None
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "no ordinary file"
        raise DataError(f"is {what}.", "Give a JSON, JSONL, CSV or Parquet file.", file=name)
    limit, free = get_settings().upload_limit_bytes, shutil.disk_usage(folder).free
    if found.st_size > limit:
        message = f"has {size(found.st_size)}, and at most {size(limit)} are taken."
        raise DataError(message, "Give a smaller file, or raise LATHE_UPLOAD_LIMIT_BYTES.", file=name)
    if found.st_size + SPARE_BYTES > free:
        message = f"has {size(found.st_size)}, and the disk of {folder} has {size(free)} free."
        raise DataError(message, "Free some space, or set LATHE_DATA_DIR to a larger disk.", file=name)


def _copy(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(CHUNK):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def _store(copy: Path, digest: str, name: str, found: dict[str, Any]) -> Dataset:
    values = {key: found[key] for key in ("format", "shape", "rows", "columns", "sample")}
    length, now = copy.stat().st_size, time.time()
    new = Dataset(id=digest[:ID_LENGTH], sha256=digest, name=name, bytes=length, created_at=now, **values)
    try:
        with database.write() as session:
            session.exec(database.insert(session, Dataset).values(**new.model_dump()).on_conflict_do_nothing())
            stored = get(session=session, dataset_id=new.id)
            copy.replace(path_of(stored))
    except BaseException:
        if _known(digest) is None:
            path_of(new).unlink(missing_ok=True)
        raise
    return stored

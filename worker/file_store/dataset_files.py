"""The files of data sets in the object store. Each has one file, whose hash is in the database."""

import logging
from pathlib import Path

from training.errors import UserError
from training.files import locked
from training.redaction import redact
from worker.file_store import object_store
from worker.settings import get_settings

log = logging.getLogger(__name__)


def push(copy: Path, file: Path) -> None:
    """Uploads `copy`, the content of the data set's `file`. Does nothing without a store.

    Raises:
        UserError: the upload failed; then no other machine could use the data set.
    """
    if (store := object_store.configured()) is None:
        return
    try:
        store.upload(copy, _key(file))
    except Exception as error:  # of any library that fsspec uses
        url, message = get_settings().store_url, f"does not take the file: {redact(str(error))}."
        fix = "Check the address, the credentials and the free space of the object store, then import the file again."
        raise UserError("LATHE_STORE_URL", url, message, fix) from error


def present(file: Path, digest: str) -> bool:
    """True if the file is on this machine, or could be downloaded.

    Raises:
        DamagedFile: the file in the store does not have the hash `digest`.
    """
    store = None if file.is_file() else object_store.configured()
    if store is None:
        return file.is_file()
    with locked(_lock(file)):
        try:
            if not file.is_file():  # no other process has downloaded it meanwhile
                store.download(_key(file), file, digest)
        except FileNotFoundError:
            return False
    return True


def forget(file: Path) -> None:
    """Deletes a data set's file in the store, and its lock here; errors are logged."""
    _lock(file).unlink(missing_ok=True)
    try:
        if store := object_store.configured():
            store.delete(_key(file))
    except Exception as error:
        log.warning("not deleted in the object store: %s", error)


def _lock(file: Path) -> Path:
    return file.with_name(f".{file.name}.lock")


def _key(file: Path) -> str:
    return f"datasets/{file.name}"

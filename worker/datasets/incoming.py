"""Copies files into the store: checks them first, and leaves nothing behind on failure."""

import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from training.data.files.formats import GIVE
from training.errors import DataError
from training.units import byte_size
from worker import disk_quota
from worker.datasets.checking import joined
from worker.disk_quota import DiskQuota
from worker.settings import get_settings

CHUNK = 2**20
SPARE_BYTES = 64 * 2**20  # left free besides the copy
LEFTOVER_SECONDS = 3600
_PREFIX = ".incoming-"


@contextmanager
def copied(path: Path, name: str, quota: DiskQuota) -> Iterator[tuple[Path, str]]:
    """Yields a copy of the file in the store's folder and its SHA-256; deletes the copy at the end unless it was renamed.

    Raises:
        DataError: it cannot be read, is too large, or does not fit on the disk or into the quota.
    """
    with _partial_copy() as copy:
        refuse_unfit([path], name, quota)
        with _disk_errors(name), path.open("rb") as reader:
            digest = _write(reader, copy, name, quota)
        yield copy, digest


@contextmanager
def copied_together(paths: Sequence[Path], names: Sequence[str], quota: DiskQuota) -> Iterator[tuple[Path, str]]:
    """As `copied`, for the rows of several checked files, joined as JSONL."""
    name = " + ".join(names)
    with _partial_copy() as copy:
        with _disk_errors(name), joined(paths, names) as reader:
            digest = _write(reader, copy, name, quota)
        yield copy, digest


def refuse_unfit(paths: Sequence[Path], name: str, quota: DiskQuota) -> None:
    """Refuses paths that are not files, are too large, or do not fit on the disk or into the quota.

    Raises:
        DataError: one of these, with the fix.
    """
    refuse_length(sum(_length(path, name) for path in paths), name, quota)


def refuse_length(length: int, name: str, quota: DiskQuota) -> None:
    """Refuses a length above the upload limit, the free disk space or what is left of the quota.

    Raises:
        DataError: it is too large; with both sizes.
    """
    folder = get_settings().datasets_dir
    limit, free = get_settings().upload_limit_bytes, shutil.disk_usage(folder).free
    if length > limit:
        raise _too_large(length, limit, name)
    if length + SPARE_BYTES > free:
        message = f"has {byte_size(length)}; the disk of {folder} has {byte_size(free)} free."
        raise DataError(message, "Free disk space, or set LATHE_DATA_DIR to a larger disk.", file=name)
    refuse_over(quota, length, name)


def refuse_over(quota: DiskQuota, length: int, name: str) -> None:
    """Refuses a length above what is left of the quota. Raises DataError, with what the owner uses and the fix."""
    if message := quota.refusal(length):
        raise DataError(message, disk_quota.FIX, file=name)


def plain_name(name: str) -> str:
    """The last part of an uploaded file's name, printable, at most 200 characters. Not used on disk."""
    printable = "".join(letter for letter in name.replace("\\", "/").rsplit("/", 1)[-1] if letter.isprintable())
    return printable[-200:] or "data"


def remove_leftovers() -> None:
    """Removes partial copies of killed processes."""
    settings = get_settings()
    for file in [*settings.datasets_dir.glob(f"{_PREFIX}*"), *settings.uploads_dir.glob("*")]:
        if file.is_file() and time.time() - file.stat().st_mtime > LEFTOVER_SECONDS:
            file.unlink(missing_ok=True)


@contextmanager
def _partial_copy() -> Iterator[Path]:
    folder = get_settings().datasets_dir
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        yield copy
    finally:
        copy.unlink(missing_ok=True)


@contextmanager
def _disk_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot be copied: {error.strerror}.", "Check the file and the disk's space.", file=name
        ) from None


def _length(path: Path, name: str) -> int:
    try:
        facts = path.stat()
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror}.", "Check the path and its permissions.", file=name
        ) from None
    if not stat.S_ISREG(facts.st_mode):
        what = "a folder" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
        raise DataError(f"is {what}.", GIVE, file=name)
    return facts.st_size


def _write(reader: IO[bytes], target: Path, name: str, quota: DiskQuota) -> str:
    """Copies a stream in chunks; it may be longer than declared."""
    digest, length, limit = hashlib.sha256(), 0, get_settings().upload_limit_bytes
    with target.open("xb") as writer:
        while chunk := reader.read(CHUNK):
            length += len(chunk)
            if length > limit:
                raise _too_large(length, limit, name)
            refuse_over(quota, length, name)
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def _too_large(length: int, limit: int, name: str) -> DataError:
    message = f"has {byte_size(length)}; the limit is {byte_size(limit)}."
    return DataError(message, "Give a smaller file, or raise LATHE_UPLOAD_LIMIT_BYTES.", file=name)

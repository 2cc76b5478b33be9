"""Opens files that users name, writes files and folders whole or not at all, and hashes them."""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """The file, opened for reading; only a regular one. Opening a named pipe would wait for its writer, perhaps for ever.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` bytes of the file.

    Raises:
        OSError: as `open_regular`.
    """
    with open_regular(path) as stream:
        return stream.read(most_bytes)


def write_whole(path: Path, text: str) -> None:
    """Writes the file whole or not at all: a failure leaves the former file, and nothing beside it. Only its user can read it.

    Raises:
        OSError: it cannot be written, for example on a full disk.
    """
    with whole_file(path) as part:
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")


def part_of(path: Path) -> Path:
    """The file that `whole_file` renames once it is complete."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file, which then replaces `path`; a failure leaves the former file, and nothing beside it."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Where to make a folder, which then becomes `path`; a failure leaves nothing. What a killed process left is deleted."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_free_space(folder: Path, needed: int, what: str) -> None:
    """Checks that the disk of `folder` has `needed` bytes for `what`.

    Raises:
        OSError: it has less; with both numbers.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{what} needs up to {needed:,} bytes, and the disk has {free:,} free")


def sha256(file: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

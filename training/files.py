"""Opens files that users name, writes files whole or not at all, and hashes them."""

import errno
import hashlib
import os
import stat
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
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sha256(file: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

"""Opens files that a user named: only regular ones. Opening a named pipe waits for its writer, for as long as there is none."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """The file, opened for reading.

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

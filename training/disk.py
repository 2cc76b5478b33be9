"""A full disk: what is known of it in words, and the reserve that is given up so that a run can still say so."""

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

RESERVE_FILE = ".reserve"
RESERVE_BYTES = 8 * 2**20
MIN_FREE_BYTES = 64 * 2**20
"""What a run needs to begin."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
# Libraries that write files wrap the error in one of their own; PyTorch's does not say why a write failed.
_FULL_IN_WORDS = re.compile(r"No space left on device|Disk quota exceeded")
_FAILED_WRITE = re.compile(r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+")
_LITTLE_BYTES = 16 * 2**20


class FullDisk(NamedTuple):
    """A full disk in words: which one with its numbers, and what to do."""

    message: str
    fix: str


def keep_reserve(folder: Path) -> None:
    """Allocates the reserve in `folder`.

    Raises:
        OSError: the disk is full.
    """
    try:
        with (folder / RESERVE_FILE).open("wb") as stream:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)
            else:
                stream.write(bytes(RESERVE_BYTES))
    except OSError:
        give_up_reserve(folder)
        raise


def give_up_reserve(folder: Path) -> None:
    """Frees the reserve, for a last word; nothing happens where it is gone."""
    with contextlib.suppress(OSError):
        (folder / RESERVE_FILE).unlink(missing_ok=True)


def is_full(error: BaseException | None, folder: Path) -> bool:
    """Whether an error means that a disk is full; `folder` is where was most likely written."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _FULL) or _FULL_IN_WORDS.search(str(error)):
            return True
        if _FAILED_WRITE.search(str(error)) and shutil.disk_usage(folder).free < _LITTLE_BYTES:
            return True
        error = error.__cause__ or error.__context__
    return False


def described(folder: Path) -> FullDisk:
    """That the disk of `folder` is full, with its mount point and what is free; and what to do about it."""
    place, free = mount_point(folder), shutil.disk_usage(folder).free
    told = f"{free / 2**20:,.1f} MiB free"
    if free < MIN_FREE_BYTES:
        message = f"The disk at {place} is full: {told}."
    else:
        message = f"A disk is full; that of the run's folder, at {place}, has {told} now."
    advice = "delete old runs and data sets, lower save_total_limit, look at all disks with df -h"
    goes_on = "then resume the run: the last complete checkpoint is kept."
    return FullDisk(message, f"Free some space on {place} ({advice}), {goes_on}")


def mount_point(folder: Path) -> Path:
    """Where the disk of `folder` is mounted."""
    place = folder.resolve()
    while not place.is_mount():
        place = place.parent
    return place

"""Detects and describes a full or read-only disk. A reserve file is freed then, so that the run can still report the error."""

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from training.errors import causes
from training.run_folder.paths import RESERVE_FILE

RESERVE_BYTES = 8 * 2**20
MIN_FREE_BYTES = 64 * 2**20
"""Free space that a run needs to start."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
# Libraries raise their own errors; PyTorch's does not give the reason of a failed write.
_FULL_MESSAGE = re.compile(r"No space left on device|Disk quota exceeded")
_FAILED_WRITE = re.compile(r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+")
_LOW_BYTES = 16 * 2**20
_LOW_INODES = 16


class FullDisk(NamedTuple):
    """The error for a full or read-only disk: the message with its mount point, and the fix."""

    message: str
    fix: str


def keep_reserve(folder: Path) -> None:
    """Allocates the reserve in `folder`. Raises OSError if the disk is full."""
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
    """Deletes the reserve file, if there is one."""
    with contextlib.suppress(OSError):
        (folder / RESERVE_FILE).unlink(missing_ok=True)


def is_full(error: BaseException | None, folder: Path) -> bool:
    """True if an error or its cause means a full disk; `folder` is on the disk that was probably written to."""
    for cause in causes(error):
        if (isinstance(cause, OSError) and cause.errno in _FULL) or _FULL_MESSAGE.search(str(cause)):
            return True
        if _FAILED_WRITE.search(str(cause)) and shutil.disk_usage(folder).free < _LOW_BYTES:
            return True
    return False


def described(folder: Path) -> FullDisk:
    """The message and fix for a full disk of `folder`."""
    place, free = mount_point(folder), shutil.disk_usage(folder).free
    if lacks_inodes(folder):
        message = f"The disk at {place} holds as many files as it can: no inode is free, although {free / 2**20:,.1f} MiB are."
        fix = f"Delete files on {place} (df -i counts them), then resume the run from its last complete checkpoint."
        return FullDisk(message, fix)
    space = f"{free / 2**20:,.1f} MiB free"
    if free < MIN_FREE_BYTES:
        message = f"The disk at {place} is full: {space}."
    else:
        message = f"A disk is full. The disk of the run's folder, at {place}, now has {space}."
    ways = "delete old runs and data sets, lower save_total_limit, check all disks with df -h"
    fix = f"Free some space on {place} ({ways}), then resume the run from its last complete checkpoint."
    return FullDisk(message, fix)


def lacks_inodes(folder: Path) -> bool:
    """True if the disk of `folder` can hold no more files, however small. Some file systems have no such limit."""
    found = os.statvfs(folder)
    return found.f_files > 0 and found.f_favail < _LOW_INODES


def read_only(folder: Path) -> FullDisk | None:
    """The message and fix if the disk of `folder` is read-only, as the kernel mounts a disk with errors again; else None."""
    try:
        if not os.statvfs(folder).f_flag & os.ST_RDONLY:
            return None
    except OSError:  # it is gone
        return None
    place = mount_point(folder)
    return FullDisk(f"The disk at {place} is read-only.", f"Mount {place} writable: dmesg shows why it is not.")


def mount_point(folder: Path) -> Path:
    """The mount point of the disk of `folder`."""
    place = folder.resolve()
    while not place.is_mount():
        place = place.parent
    return place

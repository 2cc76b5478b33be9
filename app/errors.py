"""Errors that several packages of app raise or explain."""

import errno
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.errors import Problem, UserError
from training.run_folder import full_disk
from training.units import byte_size
from worker.settings import get_settings


class CannotStart(UserError):  # noqa: N818
    """Lathe cannot start."""


LONGEST_SHOWN = 2000  # characters of each text of a problem


def shortened(problem: Problem) -> Problem:
    """The problem as an answer shows it: a request of megabytes does not come back in it."""
    texts = {name: str(part) for name, part in vars(problem).items() if name != "changes"}
    long: dict[str, Any] = {
        name: f"{text[:LONGEST_SHOWN]}…" for name, text in texts.items() if len(text) > LONGEST_SHOWN
    }
    return replace(problem, **long) if long else problem


def storage_problem(error: Exception) -> Problem | None:
    """What is wrong with a disk or the database; None for other errors."""
    from worker.store.database import says_full  # takes 0.2 s to import

    place = getattr(error, "filename", None)
    folder = Path(place).parent if isinstance(place, str) and Path(place).is_absolute() else get_settings().data_dir
    if says_full(error) or (isinstance(error, OSError) and full_disk.is_full(error, folder)):
        return _full(folder if folder.exists() else get_settings().data_dir)
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return Problem("file", str(place or folder), "is on a read-only disk.", "Mount the disk writable.")
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        fix = "Give Lathe's user access to the file and its folder (ls -ld)."
        return Problem("file", str(place or folder), "may not be opened by Lathe's user.", fix)
    return _database_problem(error)


def is_full(problem: Problem) -> bool:
    """True if the problem is a full disk."""
    return problem.field == _DISK


_DISK = "disk"


def _full(folder: Path) -> Problem:
    place, free = full_disk.mount_point(folder), shutil.disk_usage(folder).free
    fix = "Delete runs, checkpoints or data sets (page System, or `lathe system --free KIND`), or other files. Then try again."
    files = "no inode for another file is free, and " if full_disk.lacks_inodes(folder) else ""
    return Problem(_DISK, str(place), f"is full: {files}{byte_size(free)} free.", fix)


def _database_problem(error: Exception) -> Problem | None:
    from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError

    if not isinstance(error, DBAPIError):
        return None
    reason = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if _table_missing(error, reason):
        return Problem("database", None, "lacks tables of this version.", "Run `python -m worker.store.database`.")
    if isinstance(error.orig, sqlite3.DatabaseError):
        for words, message, fix in _OF_SQLITE:
            if words in reason:
                return Problem("database", None, message, fix)
    if isinstance(error, (OperationalError, InterfaceError, InternalError, ProgrammingError)):
        fix = "Check LATHE_DATABASE_URL, and that the database server is running."
        return Problem("database", None, f"is unreachable: {reason}.", fix)
    return Problem("database", None, f"cannot be read: {reason}.", "Check LATHE_DATA_DIR and LATHE_DATABASE_URL.")


_DAMAGED = "is damaged."
_RESTORE = "Stop Lathe, and restore the data folder from a backup; sqlite3's .recover command saves what is left."
_OF_SQLITE = (
    ("locked", "is locked by another program.", "Try again, or stop that program."),
    (
        "readonly database",
        "cannot be written to.",
        "Mount its disk writable, and let the user of Lathe's processes write to the data folder.",
    ),
    ("malformed", _DAMAGED, _RESTORE),
    ("not a database", _DAMAGED, _RESTORE),
)


def _table_missing(error: Any, reason: str) -> bool:
    if isinstance(error.orig, sqlite3.OperationalError):
        return reason.startswith(("no such table", "no such column"))
    return getattr(error.orig, "sqlstate", None) in ("42P01", "42703")

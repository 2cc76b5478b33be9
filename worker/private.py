"""Closing the data folder to other users of the machine, also one that was open before."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from worker.settings import Settings

log = logging.getLogger(__name__)

_FOLDERS = ("runs", "datasets", "uploads", "tokens", "broker", "logs")


def close(settings: Settings) -> None:
    """Takes the rights of group and others off the data folder, its folders and the files in it, the database among them.

    What belongs to somebody else stays as it is, which is logged: only its owner may change it.
    """
    for path in _open_to_others(settings.data_dir):
        try:
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & 0o700)
        except OSError as error:
            log.warning("%s stays open to other users: %s", path, error.strerror)


def create(path: Path) -> None:
    """Makes an empty file that only this user may read, where there is none."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _open_to_others(folder: Path) -> Iterator[Path]:
    inner = [folder / name for name in _FOLDERS]
    files = [path for path in folder.iterdir() if stat.S_ISREG(path.lstat().st_mode)]
    for path in [folder, *inner, *files]:
        try:
            found = path.lstat()
        except FileNotFoundError:  # not made yet, or a file of SQLite's that has gone
            continue
        if not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
            yield path

"""Makes the data folder private to its user."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from worker.settings import Settings

log = logging.getLogger(__name__)


def close(settings: Settings) -> None:
    """Removes the permissions of group and others from the data folder, its subfolders and its files, including the database.

    Files of other owners stay unchanged and are logged.
    """
    for path in _open_to_others(settings.data_dir):
        try:
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & 0o700)
        except OSError as error:
            log.warning("%s stays open to other users: %s", path, error.strerror)


def create(path: Path) -> None:
    """Creates an empty file that only this user may read, unless it exists."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _open_to_others(folder: Path) -> Iterator[Path]:
    for path in [folder, *folder.iterdir()]:
        try:
            found = path.lstat()
        except FileNotFoundError:  # a temporary file of SQLite
            continue
        if (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)) and stat.S_IMODE(found.st_mode) & 0o077:
            yield path

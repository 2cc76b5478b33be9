"""The disk of a run, as its supervisor sees it: room to begin, a reserve for the end, and what a full disk leaves behind."""

import errno
import shutil
from pathlib import Path

from training import disk, manifest
from training.disk import FullDisk
from worker.settings import Settings
from worker.units import size

_FULL_BYTES = 4 * 2**20 + disk.RESERVE_BYTES  # whoever met it full has freed the reserve


class RunDisk:
    """The disk that a run writes to, and that of the database."""

    def __init__(self, run_dir: Path, settings: Settings) -> None:
        self._run_dir, self._settings = run_dir, settings
        self.full: FullDisk | None = None  # from the moment on at which it was found to be

    def begin(self) -> None:
        """Looks for room to train, and keeps the reserve.

        Raises:
            OSError: the disk is full.
        """
        if shutil.disk_usage(self._run_dir).free < disk.MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"A run needs {size(disk.MIN_FREE_BYTES)} to begin")
        disk.keep_reserve(self._run_dir)

    def end(self) -> None:
        """Frees the reserve: what remains to be written may take its room."""
        disk.give_up_reserve(self._run_dir)

    def found_full(self) -> None:
        """Something could not be written in the run's folder: keeps how that is said, then makes room for it."""
        self.full = self.full or disk.described(self._run_dir)
        self.end()

    def database_full(self) -> None:
        """The same where it was the database that could not be written."""
        if self.full is None and self._settings.sqlalchemy_url.startswith("sqlite"):
            self.full = disk.described(self._settings.data_dir)
        fix = "Free some space there, then resume the run: the last complete checkpoint is kept."
        self.full = self.full or FullDisk("The disk of the database server is full.", fix)
        self.end()

    @property
    def has_room(self) -> bool:
        """Whether a checkpoint may fit."""
        return shutil.disk_usage(self._run_dir).free >= disk.MIN_FREE_BYTES

    def look_back(self) -> None:
        """Once nothing trains any more: whether it met a full disk, and said so or not."""
        if self.full or shutil.disk_usage(self._run_dir).free < _FULL_BYTES:
            self.found_full()
            self._discard_unfinished()

    def _discard_unfinished(self) -> None:
        """Deletes the checkpoint and the result that could not be written to their end; a resumed run writes them anew."""
        for checkpoint in manifest.unsealed(self._run_dir):
            manifest.discard(checkpoint)
        for partial in self._run_dir.glob("*.partial"):
            shutil.rmtree(partial, ignore_errors=True)

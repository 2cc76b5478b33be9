"""Disk space of a run: a check before the start, a reserve for the end, and cleanup after a full disk."""

import errno
import shutil
from pathlib import Path

from training.files import remove_dead_scratch
from training.run_folder import checkpoints, full_disk
from training.run_folder.full_disk import FullDisk
from training.units import byte_size
from worker.settings import Settings

_FULL_BYTES = 4 * 2**20 + full_disk.RESERVE_BYTES  # a process that found the disk full has freed the reserve


class RunDisk:
    """The disk of the run's folder, and that of the database."""

    def __init__(self, run_dir: Path, settings: Settings) -> None:
        self._run_dir, self._settings = run_dir, settings
        self.full: FullDisk | None = None  # once it was found to be full
        self.read_only: FullDisk | None = None  # once it was found to be so

    def begin(self) -> None:
        """Checks that there is space to train, and allocates the reserve. Raises OSError if the disk is full."""
        if shutil.disk_usage(self._run_dir).free < full_disk.MIN_FREE_BYTES:
            raise OSError(
                errno.ENOSPC, f"A run needs {byte_size(full_disk.MIN_FREE_BYTES)} of free disk space to start"
            )
        if full_disk.lacks_inodes(self._run_dir):
            raise OSError(errno.ENOSPC, "A run needs to create files to start")
        full_disk.keep_reserve(self._run_dir)

    def end(self) -> None:
        """Frees the reserve for the remaining writes."""
        full_disk.give_up_reserve(self._run_dir)

    def found_full(self) -> None:
        """Records that the run's disk is full, then frees the reserve."""
        self.full = self.full or full_disk.described(self._run_dir)
        self.end()

    def database_full(self) -> None:
        """Records that the database's disk is full, then frees the reserve."""
        if self.full is None and self._settings.sqlalchemy_url.startswith("sqlite"):
            self.full = full_disk.described(self._settings.data_dir)
        fix = "Free some space there, then resume the run: the last complete checkpoint is kept."
        self.full = self.full or FullDisk("The disk of the database server is full.", fix)
        self.end()

    @property
    def has_room(self) -> bool:
        """True if there is space for a checkpoint."""
        return shutil.disk_usage(self._run_dir).free >= full_disk.MIN_FREE_BYTES

    def look_back(self) -> None:
        """After training: checks whether the disk is read-only, or full, and deletes unfinished files if it is full."""
        self.read_only = full_disk.read_only(self._run_dir)
        if self.full or shutil.disk_usage(self._run_dir).free < _FULL_BYTES:
            self.found_full()
            self._discard_unfinished()

    def _discard_unfinished(self) -> None:
        """Deletes incomplete checkpoints and results; a resumed run writes them again."""
        for checkpoint in checkpoints.unsealed(self._run_dir):
            checkpoints.discard(checkpoint)
        for partial in self._run_dir.glob("*.partial"):
            shutil.rmtree(partial, ignore_errors=True)
        remove_dead_scratch(self._run_dir)

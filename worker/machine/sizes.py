"""Sizes of files and folders."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """Bytes, and the number of files that have them."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.bytes + other.bytes, self.files + other.files)


def size_of(path: Path) -> Size:
    """The size of a file, or of all files below a folder. Links are not followed; what disappears meanwhile counts nothing."""
    try:
        found = path.lstat()
    except OSError:
        return Size()
    if not stat.S_ISDIR(found.st_mode):
        return Size(found.st_size, 1)
    total, files, waiting = 0, 0, [os.fspath(path)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total, files = total + entry.stat(follow_symlinks=False).st_size, files + 1
        except OSError:
            continue
    return Size(total, files)


def entries(folder: Path) -> list[Path]:
    """The entries of a folder, by name; none if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []

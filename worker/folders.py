"""Data files in folders of this machine that LATHE_DATA_FOLDERS allows: nothing else is reached from the pages."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from training.failure import DataError
from training.files import ENDINGS
from worker.settings import get_settings

MOST_FILES = 1000
MOST_FOLDERS = 10_000


def listing() -> list[str]:
    """The data files in the allowed folders and below, under the names that `resolve` takes."""
    return list(islice(_names(), MOST_FILES))


def resolve(name: str) -> Path:
    """The file of that name.

    Raises:
        DataError: it leads out of the allowed folders (by a symbolic link too), or is no file.
    """
    for label, root in _roots().items():
        if name.startswith(f"{label}/"):
            return _inside(root, name, name.removeprefix(f"{label}/"))
    raise _outside(name)


def _roots() -> dict[str, Path]:
    """The allowed folders by what they are called: their last part, or all of it where two have the same."""
    paths = [
        Path(part).expanduser().absolute() for part in get_settings().data_folders.split(os.pathsep) if part.strip()
    ]
    same = Counter(path.name for path in paths)
    return {path.name if same[path.name] == 1 and path.name else str(path): path for path in paths}


def _inside(root: Path, name: str, rest: str) -> Path:
    try:
        real = (root / rest).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # absent, a loop of links, or a NUL in the name
        raise DataError("is not there.", "Load the list again.", file=name) from None
    if not real.is_relative_to(root.resolve()):
        raise _outside(name)
    if not real.is_file():
        raise DataError("is no file.", "Pick a file of the list.", file=name)
    return real


def _outside(name: str) -> DataError:
    fix = "Pick a file of the list; LATHE_DATA_FOLDERS says which folders it shows."
    return DataError("is not in a folder that may be read.", fix, file=name)


def _names() -> Iterator[str]:
    for label, root in _roots().items():
        for folder, inner, files in islice(os.walk(root), MOST_FOLDERS):
            inner[:] = sorted(entry for entry in inner if not entry.startswith("."))
            for file in sorted(files):
                rest = Path(folder, file).relative_to(root).as_posix()
                if file.lower().endswith(ENDINGS) and not file.startswith(".") and _leads_inside(root, rest):
                    yield f"{label}/{rest}"


def _leads_inside(root: Path, rest: str) -> bool:
    with suppress(DataError):
        return bool(_inside(root, rest, rest))
    return False

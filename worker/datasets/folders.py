"""Lists the data files in the folders of LATHE_DATA_FOLDERS; the pages can read no other files."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from training.data.files.formats import ENDINGS
from training.errors import DataError
from worker.allowed_paths import folders_in
from worker.settings import get_settings

MOST_FILES = 1000
MOST_FOLDERS = 10_000


def listing() -> list[str]:
    """The data files below the allowed folders, by the names that `resolve` accepts."""
    return list(islice(_names(), MOST_FILES))


def resolve(name: str) -> Path:
    """The path of a listed file.

    Raises:
        DataError: it is outside the allowed folders (symbolic links are followed), or not a file.
    """
    for label, root in _roots().items():
        if name.startswith(f"{label}/"):
            return _inside(root, name, name.removeprefix(f"{label}/"))
    raise _outside(name)


def _roots() -> dict[str, Path]:
    """The allowed folders by label: their last part, or the full path if two have the same."""
    paths = list(folders_in(get_settings().data_folders))
    same = Counter(path.name for path in paths)
    return {path.name if same[path.name] == 1 and path.name else str(path): path for path in paths}


def _inside(root: Path, name: str, rest: str) -> Path:
    try:
        real = (root / rest).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # absent, a loop of links, or a NUL in the name
        raise DataError("does not exist.", "Reload the list.", file=name) from None
    if not real.is_relative_to(root.resolve()):
        raise _outside(name)
    if not real.is_file():
        raise DataError("is not a file.", "Pick a file from the list.", file=name)
    return real


def _outside(name: str) -> DataError:
    fix = "Pick a file from the list; LATHE_DATA_FOLDERS sets the folders that it shows."
    return DataError("is not in an allowed folder.", fix, file=name)


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

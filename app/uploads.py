"""Which files count as uploaded: those that this process received into its own folder, and nothing else of the machine."""

import os
import stat
from pathlib import Path, PurePath
from typing import Any

from training.fields import Problem

FOLDER = "GRADIO_TEMP_DIR"
"""The environment variable from which Gradio takes the folder that it writes uploads to."""

_FIX = "Upload the file first, and send the path that the upload answered."


class NotUploaded(PermissionError):  # noqa: N818
    """A path that is not an uploaded file; `problem` says which field named it."""

    def __init__(self, field: str, path: str) -> None:
        self.problem = Problem(field, path[:500], "is not a file that was uploaded here.", _FIX)
        super().__init__(f"{path[:500]} {self.problem.message} {_FIX}")


def folder() -> Path:
    """The folder for uploads of this process."""
    return Path(os.environ[FOLDER])


def uploaded_file(path: str, within: Path, field: str = "path") -> Path:
    """The uploaded file at `path`: a regular file of ours below the folder `within`, reached without a link.

    A path that leads elsewhere is refused by its text alone: nothing outside of `within` is looked at.

    Raises:
        NotUploaded: it is anything else, or is not there.
    """
    parts = _parts_below(path, within)
    if len(parts) < 2:  # each upload has a folder of its own; what lies beside these is still coming in
        raise NotUploaded(field, path)
    place = within
    try:
        for part in parts[:-1]:
            place = place / part
            if not stat.S_ISDIR(place.lstat().st_mode):
                raise NotUploaded(field, path)
        found = (place / parts[-1]).lstat()
    except (OSError, ValueError):
        raise NotUploaded(field, path) from None
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise NotUploaded(field, path)
    return place / parts[-1]


def check_paths(value: Any, within: Path) -> None:
    """Sees that every `path` in a JSON value is an uploaded file, however deep it lies and whatever stands beside it.

    Raises:
        NotUploaded: one is not; the field is where it stands, such as data.0.path.
    """
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, dict):
            if item.get("path") is not None:
                path = item["path"]
                uploaded_file(path if isinstance(path, str) else repr(path), within, f"{place}path")
            waiting += [(f"{place}{str(key)[:80]}.", inner) for key, inner in item.items()]
        elif isinstance(item, list):
            waiting += [(f"{place}{number}.", inner) for number, inner in enumerate(item)]


def _parts_below(path: str, within: Path) -> tuple[str, ...]:
    """The parts of `path` below `within`; none where it leads elsewhere."""
    given = PurePath(path)
    if "\0" in path or ".." in given.parts or not given.is_relative_to(within):
        return ()
    return given.relative_to(within).parts

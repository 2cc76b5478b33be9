"""Checks that a path is an upload: a file that this process received into its own folder."""

import hashlib
import os
import secrets
import stat
from pathlib import Path, PurePath
from typing import Any

from starlette.formparsers import MultiPartException

from app.access import callers
from training.errors import UserError
from worker.machine.sizes import size_of

FOLDER = "GRADIO_TEMP_DIR"
"""The environment variable with Gradio's upload folder."""

_FIELD = "files"
_NO_FILE = "The form must consist of files, each with a name, in the field files, and must be complete."
_FIX = "Upload the file first, and send the path in the upload's response."


class NotUploaded(UserError):  # noqa: N818
    """A path that is not an uploaded file."""

    def __init__(self, field: str, path: str) -> None:
        super().__init__(field, path[:500], "is not a file that was uploaded here.", _FIX)


def patch_gradio_uploads() -> None:
    """Makes Gradio store each upload in a folder of its own, and take only files with names.

    It names the folder by the file's hash: two uploads of the same bytes would share one file, which the first handler deletes. It
    keeps other fields of the form in memory, whatever their length, fails at them, and leaves what it has written by then.
    """
    from gradio import route_utils

    usual, parser = route_utils.GradioUploadFile, route_utils.GradioMultiPartParser
    if usual.__name__ == "SeparateUpload":
        return

    class FilesOnly(parser):  # type: ignore[misc, valid-type]
        is_whole = False

        def on_end(self) -> None:
            self.is_whole = True

        def on_headers_finished(self) -> None:
            super().on_headers_finished()
            part = self._current_part
            if part.file is None or part.field_name != _FIELD or not _can_be_name(part.file.filename):
                raise MultiPartException(_NO_FILE)

        async def parse(self) -> Any:
            try:
                form = await super().parse()
                if not (self.items and self.is_whole):
                    raise MultiPartException(_NO_FILE)
            except BaseException:
                for file in self._files_to_close_on_error:
                    file.close()
                    Path(file.name).unlink(missing_ok=True)
                raise
            return form

    class SeparateUpload(usual):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.sha = _FolderName(callers.current().name)

    route_utils.GradioUploadFile = SeparateUpload  # type: ignore[misc]
    route_utils.GradioMultiPartParser = FilesOnly  # type: ignore[misc]


def _can_be_name(name: str) -> bool:
    """True for the name of a file, with folders or without; not for that of a folder, and what no file can be called. Surrogates
    are not printable."""
    return bool(PurePath(name).name) and PurePath(name).name != ".." and name.isprintable()


class _FolderName:
    """In place of a hash of the file: the sign of its user, and a part that nobody guesses."""

    def __init__(self, user: str) -> None:
        self._name = sign_of(user) + secrets.token_hex(24)

    def update(self, _: bytes) -> None:
        """Gradio calls it for each part of the file."""

    def hexdigest(self) -> str:
        """The folder's name."""
        return self._name


def sign_of(user: str) -> str:
    """What the folders of a user's uploads begin with."""
    return hashlib.sha256(user.encode()).hexdigest()[:16]


def bytes_of(user: str, within: Path) -> int:
    """The bytes of a user's uploads that no handler has taken yet."""
    return sum(size_of(folder).bytes for folder in within.glob(f"{sign_of(user)}*"))


def folder() -> Path:
    """The folder for uploads of this process."""
    return Path(os.environ[FOLDER])


def uploaded_file(path: str, within: Path, field: str = "path") -> Path:
    """The uploaded file at `path`: our own regular file below the folder `within`, without links in its path.

    A path outside `within`, or of another user's upload, is refused by its text, without access to the file system.

    Raises:
        NotUploaded: it is anything else, or does not exist.
    """
    parts = _parts_below(path, within)
    # Each upload has its own folder; files beside the folders are incomplete.
    if len(parts) < 2 or not parts[0].startswith(sign_of(callers.current().name)):
        raise NotUploaded(field, path)
    place = within
    try:
        for part in parts[:-1]:
            place = place / part
            if not stat.S_ISDIR(place.lstat().st_mode):
                raise NotUploaded(field, path)
        status = (place / parts[-1]).lstat()
    except (OSError, ValueError):
        raise NotUploaded(field, path) from None
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise NotUploaded(field, path)
    return place / parts[-1]


def check_paths(value: Any, within: Path) -> None:
    """Checks that every `path` in a JSON value, at any depth, is an uploaded file.

    Raises:
        NotUploaded: one is not; its field is the place in the value, such as data.0.path.
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
    """The parts of `path` below `within`; empty if it is outside."""
    pure = PurePath(path)
    if "\0" in path or ".." in pure.parts or not pure.is_relative_to(within):
        return ()
    return pure.relative_to(within).parts

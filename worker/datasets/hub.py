"""Downloads one split of a data set from the hub as a file; its size is checked first.

No token is sent: users of the pages must not read what only the server's owner may read.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from training.data.files.formats import ENDINGS
from training.errors import DataError
from worker.datasets import incoming
from worker.datasets.bundles import ABOUT_DATA, SPLIT_WORDS
from worker.disk_quota import measured
from worker.settings import get_settings
from worker.store.tables import LOCAL

CONVERTED = "refs/convert/parquet"  # the hub's own Parquet copy of other formats
_TEXT = (".jsonl", ".json", ".csv", ".tsv", ".txt")
_PREFERRED = (".parquet", *(ending + packed for ending in _TEXT for packed in ("", ".gz")), ".arrow")
_FOLDER_FIX = "Download the file yourself and upload it, or put it into a folder of LATHE_DATA_FOLDERS."
_ANSWER_SECONDS = 15
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "requests")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set on the hub."""

    path: str
    size: int

    @property
    def words(self) -> set[str]:
        """The words of its path, which include the names of split and configuration."""
        return set(re.split(r"[^a-z0-9]+", self.path.lower())) | set(PurePosixPath(self.path).parts)


def fetch(
    dataset_id: str, split: str, config: str | None = None, revision: str | None = None, owner: str = LOCAL
) -> Path:
    """Downloads a split of a data set into the folder of uploads, for `owner`; several files are joined to one JSONL file.

    The caller owns the file: `datasets.add_file` with `move` checks, stores and deletes it.

    Raises:
        DataError: the hub does not answer, has no such data, or the data is too large.
    """
    quota = measured(owner)
    with _hub_errors(dataset_id), _room() as folder:
        files, revision = _find(dataset_id, split, config, revision)
        incoming.refuse_length(sum(file.size for file in files), dataset_id, quota)
        paths = [_download(dataset_id, file.path, revision, folder) for file in files]
        target = get_settings().uploads_dir / f"{folder.name}{_ending(files[0].path) if len(files) == 1 else '.jsonl'}"
        if len(paths) == 1:
            paths[0].replace(target)
        else:
            with incoming.copied_together(paths, [path.name for path in paths], quota) as (copy, _):
                copy.replace(target)
    return target


def pick(files: list[RemoteFile], split: str, config: str | None) -> list[RemoteFile]:
    """The files of a split, in the preferred format, in order; empty if none match.

    If no file's name contains a split, all files are training data, as on the hub.

    Raises:
        DataError: several configurations have that split.
    """
    data = [file for file in files if _ending(file.path) and PurePosixPath(file.path).name not in ABOUT_DATA]
    if config:
        data = [file for file in data if config in file.path.split("/")] or [
            file for file in data if config.lower() in file.words
        ]
    named = [file for file in data if split.lower() in file.words]
    if not named and split == "train" and not any(file.words & SPLIT_WORDS for file in data):
        named = data
    ending = next((end for end in _PREFERRED if any(_ending(file.path) == end for file in named)), "")
    chosen = sorted((file for file in named if _ending(file.path) == ending), key=lambda file: file.path)
    groups = sorted({_group(file, split) for file in chosen})
    if len(groups) > 1:
        raise DataError(f"has several configurations: {', '.join(groups)}.", "Name one of them.", field="config")
    return chosen


def _find(dataset_id: str, split: str, config: str | None, revision: str | None) -> tuple[list[RemoteFile], str | None]:
    files = _listing(dataset_id, revision)
    chosen = pick(files, split, config)
    if not chosen and not revision and not any(_ending(file.path) for file in files):
        revision = CONVERTED
        chosen = pick(_listing(dataset_id, revision), split, config)
    if not chosen:
        there = ", ".join(file.path for file in files[:8]) or "nothing"
        what = f"has no data file of the split {split!r}" + (f" and the configuration {config!r}." if config else ".")
        raise DataError(what, f"It contains {there}.", field="split")
    return chosen, revision


def _listing(dataset_id: str, revision: str | None) -> list[RemoteFile]:
    # Unlike listing the tree, this is not retried for 20 s if the hub does not answer.
    info = _api().dataset_info(dataset_id, revision=revision, files_metadata=True, timeout=_ANSWER_SECONDS)
    return [RemoteFile(file.rfilename, file.size or 0) for file in info.siblings or []]


def _download(dataset_id: str, path: str, revision: str | None, folder: Path) -> Path:
    return Path(_api().hf_hub_download(dataset_id, path, repo_type="dataset", revision=revision, local_dir=folder))


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=False)


@contextmanager
def _room() -> Iterator[Path]:
    folder = get_settings().uploads_dir / f"hub-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _hub_errors(dataset_id: str) -> Iterator[None]:
    """Turns errors of the hub's client into DataError."""
    from huggingface_hub import errors

    refusals: dict[
        type[Exception], tuple[str, str]
    ] = {  # a gated repository is of the class of those that are not found
        errors.GatedRepoError: ("is gated: its owner must grant access.", _FOLDER_FIX),
        errors.RevisionNotFoundError: ("has no such revision.", "Leave the revision empty for the main branch."),
        errors.RepositoryNotFoundError: ("is not a public data set on the hub.", "Check its owner and name."),
        errors.HFValidationError: ("is not a valid data set name.", "Write owner/name."),
    }
    try:
        yield
    except DataError as error:
        file = error.file or dataset_id
        raise DataError(error.message, error.fix, file=file, line=error.line, field=error.field) from None
    except Exception as error:  # of the client and of its HTTP library, which differ by version
        if known := next((words for kind, words in refusals.items() if isinstance(error, kind)), None):
            raise DataError(*known, file=dataset_id) from None
        if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in _HTTP_LIBRARIES:
            raise
        where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        message = f"cannot be downloaded: {where} does not answer ({type(error).__name__})."
        raise DataError(message, _FOLDER_FIX, file=dataset_id) from None


def _ending(path: str) -> str:
    return next((end for end in sorted(ENDINGS, key=len, reverse=True) if path.lower().endswith(end)), "")


def _group(file: RemoteFile, split: str) -> str:
    """The configuration: a file's folders without those that every data set has."""
    parts = [
        part for part in PurePosixPath(file.path).parts[:-1] if part.lower() not in ("data", split.lower(), "default")
    ]
    return "/".join(parts)

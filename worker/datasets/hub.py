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
from worker.disk_quota import measured
from worker.settings import get_settings
from worker.store.tables import LOCAL

CONVERTED = "refs/convert/parquet"  # the hub's own Parquet copy of other formats
_PREFERRED = (
    ".parquet",
    ".jsonl",
    ".jsonl.gz",
    ".json",
    ".json.gz",
    ".csv",
    ".csv.gz",
    ".tsv",
    ".tsv.gz",
    ".txt",
    ".txt.gz",
    ".arrow",
)
_NO_DATA = ("dataset_infos.json", "dataset_dict.json", "state.json")
_FOLDER_FIX = "Download the file yourself and upload it, or put it into a folder of LATHE_DATA_FOLDERS."
_ANSWER_SECONDS = 15
_SPLIT_WORDS = ("train", "test", "validation", "valid", "val", "dev", "eval")


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
        found, revision = _find(dataset_id, split, config, revision)
        incoming.refuse_length(sum(file.size for file in found), dataset_id, quota)
        paths = [_download(dataset_id, file.path, revision, folder) for file in found]
        target = get_settings().uploads_dir / f"{folder.name}{_ending(found[0].path) if len(found) == 1 else '.jsonl'}"
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
    data = [file for file in files if _ending(file.path) and PurePosixPath(file.path).name not in _NO_DATA]
    if config:
        data = [file for file in data if config in file.path.split("/")] or [
            file for file in data if config.lower() in file.words
        ]
    named = [file for file in data if split.lower() in file.words]
    if not named and split == "train" and not any(file.words & set(_SPLIT_WORDS) for file in data):
        named = data
    ending = next((end for end in _PREFERRED if any(_ending(file.path) == end for file in named)), "")
    chosen = sorted((file for file in named if _ending(file.path) == ending), key=lambda file: file.path)
    groups = sorted({_group(file, split) for file in chosen})
    if len(groups) > 1:
        raise DataError(f"has several configurations: {', '.join(groups)}.", "Name one of them.", field="config")
    return chosen


def _find(dataset_id: str, split: str, config: str | None, revision: str | None) -> tuple[list[RemoteFile], str | None]:
    files = _listing(dataset_id, revision)
    found = pick(files, split, config)
    if not found and not revision and not any(_ending(file.path) for file in files):
        revision = CONVERTED
        found = pick(_listing(dataset_id, revision), split, config)
    if not found:
        there = ", ".join(file.path for file in files[:8]) or "nothing"
        what = f"has no data file of the split {split!r}" + (f" and the configuration {config!r}." if config else ".")
        raise DataError(what, f"It contains {there}.", field="split")
    return found, revision


def _listing(dataset_id: str, revision: str | None) -> list[RemoteFile]:
    # Unlike listing the tree, this is not retried for 20 s if the hub does not answer.
    found = _api().dataset_info(dataset_id, revision=revision, files_metadata=True, timeout=_ANSWER_SECONDS)
    return [RemoteFile(file.rfilename, file.size or 0) for file in found.siblings or []]


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

    try:
        yield
    except DataError as error:
        raise DataError(
            error.message, error.fix, file=error.file or dataset_id, line=error.line, field=error.field
        ) from None
    except errors.GatedRepoError:
        raise DataError("is gated: its owner must grant access.", _FOLDER_FIX, file=dataset_id) from None
    except errors.RevisionNotFoundError:
        raise DataError(
            "has no such revision.", "Leave the revision empty for the main branch.", file=dataset_id
        ) from None
    except errors.RepositoryNotFoundError:
        raise DataError("is not a public data set on the hub.", "Check its owner and name.", file=dataset_id) from None
    except errors.HFValidationError:
        raise DataError("is not a valid data set name.", "Write owner/name.", file=dataset_id) from None
    except Exception as error:  # of the client and of its HTTP library, which differ by version
        if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in (
            "httpx",
            "httpx2",
            "httpcore",
            "requests",
        ):
            raise
        where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        raise DataError(
            f"cannot be downloaded: {where} does not answer ({type(error).__name__}).", _FOLDER_FIX, file=dataset_id
        ) from None


def _ending(path: str) -> str:
    return next((end for end in sorted(ENDINGS, key=len, reverse=True) if path.lower().endswith(end)), "")


def _group(file: RemoteFile, split: str) -> str:
    """The configuration: a file's folders without those that every data set has."""
    parts = [
        part for part in PurePosixPath(file.path).parts[:-1] if part.lower() not in ("data", split.lower(), "default")
    ]
    return "/".join(parts)

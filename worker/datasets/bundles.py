"""Folders and zip archives of data files, read as one file: what `datasets` saves to disk, or any data files of one split."""

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from training.config import json_text
from training.data.files import zip_files
from training.data.files.formats import ENDINGS, GIVE, ZIP, Expansion
from training.errors import DataError
from training.files import read_regular
from worker.datasets import incoming
from worker.disk_quota import UNLIMITED, DiskQuota

MOST_FILES, MOST_ENTRIES = 1000, 10_000
_LARGEST_STATE = 2**20  # bytes of state.json
ABOUT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_SPLITS = {"valid": "validation", "val": "validation", "dev": "validation", "eval": "validation"}
SPLIT_WORDS = {"train", "test", "validation", *_SPLITS}
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)*")


def is_bundle(path: Path) -> bool:
    """True for a folder and for a zip archive."""
    if path.is_dir():
        return True
    try:
        return read_regular(path, len(ZIP)) == ZIP
    except OSError:  # reported by who reads it
        return False


@contextmanager
def as_file(path: Path, name: str, quota: DiskQuota = UNLIMITED) -> Iterator[Path]:
    """The file itself, or the rows of all files of a folder or zip archive as one JSONL file, deleted at the end.

    Raises:
        DataError: it has no data files, those of several splits, or lacks a shard; or one of them cannot be read; or they
            do not fit into the quota.
    """
    if not is_bundle(path):
        yield path
        return
    with TemporaryDirectory(prefix=".lathe-") as unpacked:
        is_folder = path.is_dir()
        folder = path if is_folder else _unpacked(path, Path(unpacked), name, quota)
        files = _data_files(folder, name, "folder" if is_folder else "zip archive")
        incoming.refuse_unfit(files, name, quota)
        if len(files) == 1:
            yield files[0]
            return
        names = [str(file.relative_to(folder)) for file in files]
        with incoming.copied_together(files, names, quota) as (joined, _):
            named = Path(unpacked) / f"{incoming.plain_name(name)}.jsonl"
            named.symlink_to(joined)
            yield named


def _data_files(folder: Path, name: str, kind: str) -> list[Path]:
    entries = list(islice(folder.rglob("*"), MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        raise DataError(f"contains more than {MOST_ENTRIES:,} files.", "Give the folder of the data.", file=name)
    files = sorted(file for file in entries if _is_data(file, folder))
    if not files:
        raise DataError(f"is a {kind} without data files.", GIVE, file=name)
    if len(files) > MOST_FILES:
        raise DataError(f"contains {len(files):,} data files.", f"Join them to at most {MOST_FILES:,}.", file=name)
    splits = {split for file in files for split in _splits_of(file.relative_to(folder))}
    if len(splits) > 1:
        message = f"contains the splits {' and '.join(sorted(splits))}."
        raise DataError(message, "Give the folder or the file of one split.", file=name)
    _check_shards(folder, files, name)
    return files


def _is_data(file: Path, folder: Path) -> bool:
    """True for a data file that is not hidden, and is in the folder itself: a link may lead to files that a user may not read."""
    named = file.name.lower().endswith(ENDINGS) and file.name not in ABOUT_DATA
    hidden = any(part.startswith((".", "__")) for part in file.relative_to(folder).parts)
    return named and not hidden and file.is_file() and file.resolve().is_relative_to(folder.resolve())


def _splits_of(path: Path) -> set[str]:
    words = set(re.split(r"[^a-z]+", path.as_posix().lower())) & SPLIT_WORDS
    return {_SPLITS.get(word, word) for word in words}


def _check_shards(folder: Path, files: list[Path], name: str) -> None:
    """Checks that no shard is missing: of those that state.json names, or that the names of the others count."""
    expected = {file.parent / shard for file in files if (shards := _shards(file)) for shard in shards}
    expected |= {state.parent / shard for state in folder.rglob("state.json") for shard in _named_shards(state)}
    missing = sorted(str(file.relative_to(folder)) for file in expected if not file.is_file())
    if missing:
        raise DataError(f"lacks the shard {missing[0]}.", "Copy or download it again, with all its files.", file=name)


def _shards(file: Path) -> list[str]:
    """The names of all shards of which this file is one."""
    match = _SHARD.fullmatch(file.name)
    if match is None:
        return []
    ending = file.name[match.end(3) :]
    return [f"{match[1]}-{number:05}-of-{match[3]}{ending}" for number in range(min(int(match[3]), MOST_FILES))]


def _named_shards(state: Path) -> list[str]:
    try:
        entries = json_text.load(read_regular(state, _LARGEST_STATE))["_data_files"]
        return [PurePosixPath(str(entry["filename"])).name for entry in entries]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _unpacked(path: Path, folder: Path, name: str, quota: DiskQuota) -> Path:
    """The data files of a zip archive, unpacked into the folder under their own names."""
    try:
        with zip_files.opened(path) as archive:
            if "xl/workbook.xml" in archive.namelist():
                raise DataError(
                    "is an Excel workbook (.xlsx).", "Save the sheet as CSV UTF-8 (in Excel: File, Save As)."
                )
            members = [entry for entry in archive.infolist() if _is_wanted(entry.filename)]
            Expansion(path.stat().st_size).add(sum(entry.file_size for entry in members))
            incoming.refuse_length(sum(entry.file_size for entry in members), name, quota)
            for entry in members[: MOST_FILES + 1]:
                archive.extract(entry, folder)  # drops "..", drives and a leading slash; stops at the declared size
    except DataError as error:
        raise DataError(error.message, error.fix, file=name) from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError, zlib.error) as error:
        message = f"is a zip archive that cannot be read: {error}."
        raise DataError(message, "Pack it again, without password.", file=name) from None
    return folder


def _is_wanted(name: str) -> bool:
    """True for the name of a data file, which no folder has: theirs end with a slash."""
    return name.lower().endswith(ENDINGS) or PurePosixPath(name).name == "state.json"

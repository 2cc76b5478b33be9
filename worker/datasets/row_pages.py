"""Pages of the rows of a stored data set, read in a process with limits, from any row on.

JSONL, CSV and TSV files have an index beside them, made once in the background; a Parquet file has its row groups. Other formats,
and gzip files, are read from their start, so their pages end at a maximum row, which the page names.
"""

import json
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.data.files import browse
from training.data.files.browse import INDEXED
from training.errors import DataError
from worker.datasets import checking
from worker.machine import programs

log = logging.getLogger(__name__)

REACHABLE = 200_000
"""The last row that pages show of a file that can only be read from its start."""

WHOLE_CHARACTERS = 1_000_000
_INDEXED_BYTES = 4 * 2**20  # a smaller file is read from its start as fast
_making: set[Path] = set()
_lock = threading.Lock()


def page(path: Path, first: int, count: int) -> list[dict[str, Any]]:
    """Up to `count` rows from number `first` on, as `training.data.files.browse.document` describes them.

    Long values are cut; if only one row is asked for, at a million characters. Fewer rows are returned if they are very long.

    Raises:
        DataError: the row is out of reach, or the rows cannot be read.
    """
    file_format = _format(path)
    if first > reachable(file_format, first):
        message = f"is beyond row {REACHABLE:,}, the last one that pages show of {file_format.upper()}."
        raise DataError(message, "Search for it, or save the file as JSONL, CSV or Parquet, without gzip.", line=first)
    characters = WHOLE_CHARACTERS if count == 1 else browse.MATCH_CHARACTERS
    index = index_of(path)
    arguments = [f"--first={first}", f"--count={count}", f"--characters={characters}"]
    arguments += [f"--index={index}"] if index.is_file() else []
    limits = replace(checking.limits_for(path), reads=(path, index))
    result = programs.run_limited(programs.BROWSE, [str(path), file_format, *arguments], limits)
    if result.code:
        raise checking.crash_error(limits, result)
    return [json.loads(line) for line in result.output.splitlines()]


def reachable(file_format: str, rows: int) -> int:
    """The last row, of that many, that pages show."""
    return rows if file_format in (*INDEXED, "parquet") else min(rows, REACHABLE)


def index_of(path: Path) -> Path:
    """The index of a data file, which may not exist."""
    return path.with_name(f"{path.name}.index")


def prepare(path: Path) -> None:
    """Starts to make the index of a large file in the background, unless it exists or is being made.

    Raises:
        DataError: the file is not there, or may not be read.
    """
    with _lock:
        needed = _format(path) in INDEXED and path not in _making and not index_of(path).exists()
        if not needed or checking.length_of(path) < _INDEXED_BYTES:
            return
        _making.add(path)
    threading.Thread(target=_make, args=(path,), name=f"index of {path.name}", daemon=True).start()


def _format(path: Path) -> str:
    return path.name.partition(".")[2]


def drop(path: Path) -> None:
    """Removes the index of a deleted file."""
    index_of(path).unlink(missing_ok=True)


def _make(path: Path) -> None:
    """Without an index pages are read from the start of the file, so a failure only makes them slower."""
    try:
        limits = checking.limits_for(path)
        result = programs.run_limited(programs.BROWSE, [str(path), _format(path), "--write-index"], limits)
        if result.code:
            log.warning("the rows of %s have no index: %s", path.name, result.last_line)
            return
        aside = path.with_name(f"{path.name}.index-{threading.get_ident()}")
        aside.write_bytes(result.output)
        aside.replace(index_of(path))
        if not path.exists():  # deleted meanwhile
            drop(path)
    except (OSError, DataError) as error:
        log.warning("the rows of %s have no index: %s", path.name, error)
    finally:
        with _lock:
            _making.discard(path)

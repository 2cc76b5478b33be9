"""Reads the rows of a file from any number on. For JSONL an index tells where rows begin, so that those before are not read."""

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TextIO

from training.data.example import Row
from training.data.files.formats import open_text
from training.data.files.json_reader import LONGEST_ROW, numbered_rows
from training.data.files.readers import parquet_rows_from, read_records
from training.errors import DataError

EVERY = 64
"""The index has an entry for each 64th row: 250 kB for a million rows."""

_ENTRY = struct.Struct("<QQ")  # byte offset in the file, and number of the line from 1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def entries(path: Path) -> Iterator[bytes]:
    """Yields the entries of the index of a JSONL file, in order."""
    with path.open("rb") as stream:
        offset = len(_BYTE_ORDER_MARK) if stream.read(3) == _BYTE_ORDER_MARK else 0
    row = 0
    with open_text(path) as text:
        for number, line in enumerate(iter(lambda: text.readline(LONGEST_ROW), ""), 1):
            if line.strip():
                if row % EVERY == 0:
                    yield _ENTRY.pack(offset, number)
                row += 1
            offset += len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))


def rows_from(
    path: Path,
    file_format: str,
    first: int = 1,
    *,
    index: Path | None = None,
    wanted: Callable[[int, str], bool] | None = None,
) -> Iterator[tuple[int, Row | DataError]]:
    """Yields the rows from number `first` on with their numbers, or the error in place of a row that cannot be read.

    `index` is a file of `entries`. Rows of JSONL for which `wanted(row, line)` is false are left out.

    Raises:
        DataError: the rest of the file cannot be read.
    """
    if file_format == "parquet":
        yield from enumerate(parquet_rows_from(path, first), first)
    elif file_format.removesuffix(".gz") == "jsonl":
        row, number, offset = _entry(index, first)
        with _text_from(path, offset) as text:
            yield from numbered_rows(text, row=row, number=number, wanted=partial(_is_wanted, first, wanted))
    else:
        yield from islice(enumerate(read_records(path, file_format), 1), first - 1, None)


def _is_wanted(first: int, wanted: Callable[[int, str], bool] | None, row: int, line: str) -> bool:
    return row >= first and (wanted is None or wanted(row, line))


def _entry(index: Path | None, first: int) -> tuple[int, int, int]:
    """The last row in the index that is not after `first`, its line and its offset; without an index the first row."""
    place = (first - 1) // EVERY
    if index is None or not place:
        return 1, 1, 0
    with index.open("rb") as stream:
        length = stream.seek(0, io.SEEK_END) // _ENTRY.size
        place = min(place, max(length - 1, 0))
        stream.seek(place * _ENTRY.size)
        offset, number = _ENTRY.unpack(stream.read(_ENTRY.size)) if length else (0, 1)
    return place * EVERY + 1, number, offset


@contextmanager
def _text_from(path: Path, offset: int) -> Iterator[TextIO]:
    """The file as text from a byte on, which begins a line."""
    if not offset:
        with open_text(path) as text:
            yield text
        return
    with path.open("rb") as stream:
        stream.seek(offset)
        yield io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")

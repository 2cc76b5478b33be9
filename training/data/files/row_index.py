"""Reads the rows of a file from any number on.

For JSONL, CSV and TSV an index tells where rows begin, so that those before are not read.
"""

import io
import struct
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from training.data.example import Row
from training.data.files import table_reader
from training.data.files.formats import byte_count, first_byte, open_text
from training.data.files.json_reader import LONGEST_ROW, numbered_rows
from training.data.files.readers import parquet_rows_from, read_records
from training.data.files.table_reader import DELIMITERS
from training.errors import DataError

EVERY = 64
"""The index has an entry for each 64th row: 250 kB for a million rows."""

INDEXED = ("jsonl", *DELIMITERS)
"""The formats whose rows an index finds. Parquet has its row groups; a gzip file can only be unpacked from its start."""

_ENTRY = struct.Struct("<QQ")  # byte offset in the file, and number of the line from 1


def entries(path: Path, file_format: str) -> Iterator[bytes]:
    """Yields the entries of the index of a file of an `INDEXED` format, in order."""
    begins = _lines(path) if file_format == "jsonl" else _records(path, file_format)
    for offset, number in islice(begins, 0, None, EVERY):
        yield _ENTRY.pack(offset, number)


def _lines(path: Path) -> Iterator[tuple[int, int]]:
    """The offset and the number of each line with a row."""
    offset = first_byte(path)
    with open_text(path) as text:
        for number, line in enumerate(iter(lambda: text.readline(LONGEST_ROW), ""), 1):
            if line.strip():
                yield offset, number
            offset += byte_count(line)


def _records(path: Path, file_format: str) -> Iterator[tuple[int, int]]:
    """The offset and the first line of each record of a table."""
    return ((place.offset, place.line) for place in table_reader.places(path, DELIMITERS[file_format]))


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
        with open_text(path, offset) as text:
            yield from numbered_rows(text, row=row, number=number, wanted=partial(_is_wanted, first, wanted))
    elif index is not None and file_format in DELIMITERS:
        row, number, offset = _entry(index, first)
        start = table_reader.Place(row, number, offset) if offset else None
        rows = table_reader.read_table(path, DELIMITERS[file_format], start)
        yield from islice(enumerate(rows, row), first - row, None)
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

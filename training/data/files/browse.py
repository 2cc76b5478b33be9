"""`python -m training.data.files.browse FILE FORMAT ...` prints rows of a checked file as lines of JSON. No torch.

`--first N --count N` prints the rows from number N on; `--search TEXT` those that contain the text, and the progress;
`--write-index` prints the index of the rows instead: where rows of JSONL, CSV and TSV begin, so that those before are not read.
Like the inspection it runs with limits and writes no file.
"""

import argparse
import io
import json
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from training.data.example import Row
from training.data.files import table_reader
from training.data.files.formats import byte_count, first_byte, open_text
from training.data.files.json_reader import LONGEST_ROW, numbered_rows
from training.data.files.readers import read_parquet, read_records
from training.data.files.table_reader import DELIMITERS
from training.errors import DataError

MATCHES = 1000
MATCH_CHARACTERS = 2000
_ROW_CHARACTERS, _OUTPUT_CHARACTERS = 2 * 2**20, 4 * 2**20
_PROGRESS_ROWS = 5000

EVERY = 64
"""The index has an entry for each 64th row: 250 kB for a million rows."""

INDEXED = ("jsonl", *DELIMITERS)
"""The formats whose rows an index finds. Parquet has its row groups; a gzip file can only be unpacked from its start."""

_ENTRY = struct.Struct("<QQ")  # byte offset in the file, and number of the line from 1


def entries(path: Path, file_format: str) -> Iterator[bytes]:
    """Yields the entries of the index of a file of an `INDEXED` format, in order."""
    if file_format == "jsonl":
        begins = _lines(path)
    else:
        begins = ((place.offset, place.line) for place in table_reader.places(path, DELIMITERS[file_format]))
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

    def is_wanted(row: int, line: str) -> bool:
        return row >= first and (wanted is None or wanted(row, line))

    if file_format == "parquet":
        yield from enumerate(read_parquet(path, first), first)
    elif file_format.removesuffix(".gz") == "jsonl":
        row, number, offset = _entry(index, first)
        with open_text(path, offset) as text:
            yield from numbered_rows(text, row=row, number=number, wanted=is_wanted)
    elif index is not None and file_format in DELIMITERS:
        row, number, offset = _entry(index, first)
        start = table_reader.CellPlace(row, number, offset) if offset else None
        rows = table_reader.read_table(path, DELIMITERS[file_format], start)
        yield from islice(enumerate(rows, row), first - row, None)
    else:
        yield from islice(enumerate(read_records(path, file_format), 1), first - 1, None)


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


class _Cell:
    """Copies a value until a number of characters is used up; `cut` is true if something is missing."""

    def __init__(self, characters: int) -> None:
        self.left = characters
        self.cut = False

    def copy(self, value: Any) -> Any:
        if isinstance(value, dict):
            return dict(self._items(value.items()))
        if isinstance(value, (list, tuple)):
            return [item for _, item in self._items(enumerate(value))]
        if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value)):
            self.left -= 1
            return value
        text = value if isinstance(value, str) else str(value)  # dates, decimals, bytes and NaN have no JSON type
        kept = text[: max(self.left, 0)]
        self.cut |= len(kept) < len(text)
        self.left -= len(kept) + 1
        return kept

    def _items(self, pairs: Any) -> Iterator[tuple[Any, Any]]:
        for name, value in pairs:
            if self.left <= 0:
                self.cut = True
                return
            yield name if isinstance(name, int) else str(name), self.copy(value)


def document(number: int, row: Row | DataError, characters: int) -> dict[str, Any]:
    """A row as JSON: its number, its values with at most `characters` each, and the columns whose values are cut.

    A row that cannot be read has its problem instead of values.
    """
    if isinstance(row, DataError):
        return {"row": number, "values": {}, "cut": [], "problem": row.message, "fix": row.fix}
    values, cut, left = {}, [], _ROW_CHARACTERS
    for name, value in row.items():
        cell = _Cell(min(characters, left))
        values[str(name)] = cell.copy(value)
        left -= min(characters, left) - max(cell.left, 0)
        cut += [str(name)] if cell.cut else []
    return {"row": number, "values": values, "cut": cut}


def texts(value: Any) -> Iterator[str]:
    """The texts in a value, with those inside lists and objects; numbers as text."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, bool):
        yield "true" if value else "false"
    elif value is not None:
        yield value if isinstance(value, str) else str(value)


def search(path: Path, file_format: str, text: str) -> Iterator[dict[str, Any]]:
    """Yields the rows that contain the text, in any case, and between them the number of rows read so far.

    Ends after `MATCHES` rows, or some MiB of them, with {"more": true}.
    """
    wanted, found, length, reported = text.casefold(), 0, 0, 0

    def may_match(row: int, line: str) -> bool:
        # A line without escapes contains each of its texts as it is, so that most lines need not be parsed.
        return row % _PROGRESS_ROWS == 0 or "\\" in line or wanted in line.casefold()

    for number, row in rows_from(path, file_format, wanted=may_match):
        if number - reported >= _PROGRESS_ROWS:
            reported = number
            yield {"read": number}
        if isinstance(row, DataError) or not any(wanted in part.casefold() for part in texts(row)):
            continue
        if found == MATCHES or length > _OUTPUT_CHARACTERS:
            yield {"read": number, "more": True}
            return
        match = document(number, row, MATCH_CHARACTERS)
        found, length = found + 1, length + len(json.dumps(match))
        yield match


def page(path: Path, file_format: str, first: int, count: int, characters: int, index: Path | None) -> Iterator[Any]:
    """Yields up to `count` rows from number `first` on, fewer if they are very long."""
    length = 0
    for number, row in islice(rows_from(path, file_format, first, index=index), count):
        shown = document(number, row, characters)
        yield shown
        length += len(json.dumps(shown, ensure_ascii=False))
        if length > _OUTPUT_CHARACTERS:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description="Print rows of a data file as lines of JSON.")
    parser.add_argument("file", type=Path)
    parser.add_argument("file_format")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--characters", type=int, default=MATCH_CHARACTERS)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--search")
    parser.add_argument("--write-index", action="store_true")
    given = parser.parse_args()
    if given.write_index:
        sys.stdout.buffer.writelines(entries(given.file, given.file_format))
        return
    printed = (
        page(given.file, given.file_format, given.first, given.count, given.characters, given.index)
        if given.search is None
        else search(given.file, given.file_format, given.search)
    )
    try:
        for line in printed:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    except DataError as error:  # the rest of the file cannot be read
        sys.stdout.write(json.dumps(document(error.line or 0, error, 0)) + "\n")


if __name__ == "__main__":
    main()

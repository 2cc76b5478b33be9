"""Reads rows from CSV and TSV. Also refuses what Python's reader accepts: wrong number of values, repeated header, bad bytes."""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from training.data.example import Row
from training.data.files.formats import byte_count, first_byte, line_fault, open_text
from training.data.files.json_reader import LONGEST_ROW
from training.errors import DataError

if TYPE_CHECKING:
    from _csv import Reader  # the type of csv.reader, without a public name before Python 3.13

DELIMITERS = {"csv": "", "tsv": "\t"}
"""The delimiter of each format; of CSV it is the most frequent of `_DELIMITERS` in the header."""

_DELIMITERS = ",;\t"


@dataclass(frozen=True)
class CellPlace:
    """Where a record begins: the number of its row and of its line, from 1, and the byte in the file."""

    row: int
    line: int
    offset: int


def read_table(path: Path, delimiter: str = "", start: CellPlace | None = None) -> Iterator[Row | DataError]:
    """Yields a row of texts for each record, from `start` on. The default delimiter is the most frequent one in the header.
    Raises DataError if the header has a column twice, or a quote is not closed."""
    with open_text(path) as stream:
        lines = _Lines(stream)
        delimiter = delimiter or _delimiter(lines.first)
        reader = _reader(lines, delimiter)
        header = _header(reader, lines)
        if start is None:
            yield from _rows(reader, lines, header)
            return
    with open_text(path, start.offset) as stream:
        lines = _Lines(stream)
        yield from _rows(_reader(lines, delimiter), lines, header, row=start.row - 1, line=start.line - 1)


def places(path: Path, delimiter: str = "") -> Iterator[CellPlace]:
    """Yields where each record of a checked table begins. Values may contain line breaks, so these are not its lines."""
    with open_text(path) as stream:
        lines = _CountedLines(stream, first_byte(path))
        reader = _reader(lines, delimiter or _delimiter(lines.first))
        _header(reader, lines)
        row, line, offset = 1, reader.line_num + 1, lines.offset
        for values in reader:
            if values:
                yield CellPlace(row, line, offset)
                row += 1
            line, offset = reader.line_num + 1, lines.offset


def _reader(lines: "_Lines", delimiter: str) -> "Reader":
    csv.field_size_limit(LONGEST_ROW)
    return csv.reader(lines, delimiter=delimiter, strict=True)


def _header(reader: "Reader", lines: "_Lines") -> list[str]:
    try:
        header = next(reader)
    except csv.Error as error:
        raise _broken(error, 1, 1, reader.line_num) from None
    if (fault := lines.take_fault()) is not None:
        raise DataError(f"{fault.message[:-1]}, in the header.", fault.fix)
    check_columns(header)
    return header


def _rows(
    reader: "Reader", lines: "_Lines", header: list[str], row: int = 0, line: int = 0
) -> Iterator[Row | DataError]:
    """The rows after `row`; `line` is the number of lines of the file before those of the reader."""
    begin = reader.line_num
    try:
        for values in reader:
            begin, fault = reader.line_num, lines.take_fault()
            if not values:
                continue
            row += 1
            yield fault or _row(header, values)
    except csv.Error as error:
        raise _broken(error, line + begin + 1, row + 1, line + reader.line_num) from None


class _Lines:
    """The lines of a table, with `first` in advance. `take_fault` returns the first error since its last call."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._fault: DataError | None = None
        self.first = stream.readline(LONGEST_ROW)
        self._next = self.first

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line, self._next = self._next or self._stream.readline(LONGEST_ROW), ""
        if not line:
            raise StopIteration
        self._fault = self._fault or line_fault(line)
        return line

    def take_fault(self) -> DataError | None:
        fault, self._fault = self._fault, None
        return fault


class _CountedLines(_Lines):
    """Lines that also tell `offset`, the byte after those that were read."""

    def __init__(self, stream: TextIO, offset: int) -> None:
        super().__init__(stream)
        self.offset = offset

    def __next__(self) -> str:
        line = super().__next__()
        self.offset += byte_count(line)
        return line


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def check_columns(names: list[str]) -> None:
    """Checks that each column has a name of its own. Raises DataError if two have the same name."""
    counts = Counter(names)
    if repeated := [name for name in names if counts[name] > 1]:
        message = f"has the column {repeated[0]!r} twice."
        raise DataError(message, "Give each column its own name.", field=repeated[0])


def _row(header: list[str], values: list[str]) -> Row | DataError:
    if len(values) != len(header):
        message = f"has {len(values)} values for {len(header)} columns."
        return DataError(message, "Quote values that contain the delimiter or line breaks.")
    if values == header:
        return DataError("repeats the header.", "Delete this row.")
    return dict(zip(header, values, strict=True))


def _broken(error: csv.Error, begin: int, row: int, line: int) -> DataError:
    if "field larger" in str(error) or "unexpected end of data" in str(error):
        message = f"is not valid CSV: a quote is not closed (from line {begin} of the file on)."
        return DataError(message, "Close every quote, and double quotes inside a value.", line=row)
    message = f"is not valid CSV: {error} (line {line} of the file)."
    return DataError(message, "Close every quote, and double quotes inside a value.", line=row)

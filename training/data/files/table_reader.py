"""Reads rows from CSV and TSV. Also refuses what Python's reader accepts: wrong number of values, repeated header, bad bytes."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from training.data.example import Row
from training.data.files.formats import line_fault, open_text
from training.data.files.json_reader import LONGEST_ROW
from training.errors import DataError

_DELIMITERS = ",;\t"


def read_table(path: Path, delimiter: str = "") -> Iterator[Row | DataError]:
    """Yields a row of texts for each record. The default delimiter is the most frequent one in the header.

    Raises:
        DataError: the header has a column twice, or a quote is not closed.
    """
    csv.field_size_limit(LONGEST_ROW)
    with open_text(path) as stream:
        lines = _Lines(stream)
        reader = csv.reader(lines, delimiter=delimiter or _delimiter(lines.first), strict=True)
        row = begin = 0
        try:
            header = next(reader)
            _check_header(header, lines)
            begin = reader.line_num
            for values in reader:
                begin, fault = reader.line_num, lines.take_fault()
                if not values:
                    continue
                row += 1
                yield fault or _row(header, values)
        except csv.Error as error:
            raise _broken(error, begin + 1, row + 1, reader.line_num) from None


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


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _check_header(header: list[str], lines: _Lines) -> None:
    fault = lines.take_fault()
    if fault is not None:
        raise DataError(f"{fault.message[:-1]}, in the header.", fault.fix)
    doubled = [name for name in header if header.count(name) > 1]
    if doubled:
        message = f"has the column {doubled[0]!r} twice."
        raise DataError(message, "Give each column its own name.", field=doubled[0])


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

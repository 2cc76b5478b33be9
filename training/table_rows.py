"""Rows from CSV and TSV, with what Python's own reader lets pass: rows of another length, a header twice, bad bytes."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from training.example import Row
from training.failure import DataError
from training.files import line_fault, open_text
from training.json_rows import LONGEST_ROW

_DELIMITERS = ",;\t"


def read_table(path: Path, delimiter: str = "") -> Iterator[Row | DataError]:
    """A row of texts for each record under the header. A delimiter that is not given is the one most used in the header.

    Raises:
        DataError: the header names a column twice or not at all, or a quote is never closed.
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
    """The lines of a table, the first of which may be looked at ahead; `take_fault` is what was wrong in those since."""

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
        message = f"names the column {doubled[0]!r} twice."
        raise DataError(message, "Give each column a name of its own.", field=doubled[0])


def _row(header: list[str], values: list[str]) -> Row | DataError:
    if len(values) != len(header):
        message = f"has {len(values)} values for {len(header)} columns."
        return DataError(message, "Quote values that hold the delimiter or line breaks.")
    if values == header:
        return DataError("repeats the header.", "Delete this row: two files were joined with their headers.")
    return dict(zip(header, values, strict=True))


def _broken(error: csv.Error, begin: int, row: int, line: int) -> DataError:
    if "field larger" in str(error) or "unexpected end of data" in str(error):
        message = f"is not valid CSV: a quote is opened and never closed (from line {begin} of the file on)."
        return DataError(message, "Close every quote, and double quotes inside a value.", line=row)
    message = f"is not valid CSV: {error} (line {line} of the file)."
    return DataError(message, "Close every quote, and double quotes inside a value.", line=row)

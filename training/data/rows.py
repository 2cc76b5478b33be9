"""Reads the rows of data sets as examples, numbered through file after file. No torch."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.config.data_sets import Source, set_names
from training.data.example import EmptyRow, Example, Row
from training.data.files.formats import file_format
from training.data.files.readers import read_rows
from training.data.mapping import format_of, parse_mapping, through
from training.data.row_formats import find_format
from training.data.to_examples import to_example
from training.errors import DataError

Reader = Callable[[Row], tuple[str, Example]]


def read_numbered(
    path: Path, columns: str | None = None, *, unwanted: bool = False
) -> Iterator[tuple[int, Row, Example | None]]:
    """Yields every row's number from 0, the row as it is in the file, and its example.

    The example is None for a row that does not train: its prompt or answer is empty, or its label is false and `unwanted` is
    not set. `columns` is a mapping (training/data/mapping.py); None detects each row's format.

    Raises:
        DataError: a row cannot be read; names the first one.
    """
    read = reader(columns)
    for number, row in enumerate(read_rows(path, file_format(path, path.name))):
        try:
            _, example = read(row)
        except EmptyRow:
            yield number, row, None
        except DataError as error:
            raise DataError(error.message, error.fix, line=number + 1, field=error.field) from None
        else:
            yield number, row, example if unwanted or example.label is not False else None


def reader(columns: str | None = None) -> Reader:
    """A function from a row to its format and its example. Raises DataError if `columns` is not a valid mapping."""
    if columns is None:
        return _detected
    mapping = parse_mapping(columns)
    row_format = format_of(mapping)

    return lambda row: (row_format, through(mapping, row, lambda mapped: to_example(mapped, row_format)))


def _detected(row: Row) -> tuple[str, Example]:
    row_format = find_format(row).format
    return row_format, to_example(row, row_format)


@dataclass(frozen=True)
class DataFile:
    """A file with the mapping of its columns, its name on pages, and how much of it is used (see `Source`)."""

    path: Path
    columns: str | None
    name: str = ""
    weight: float | None = None
    max_rows: int | None = None


@dataclass(frozen=True)
class DataRows:
    """The rows of files, numbered through from 0; `ends` are the numbers at which each file ends."""

    files: tuple[DataFile, ...]
    ends: tuple[int, ...]

    def place(self, number: int) -> tuple[int, int]:
        """The index of a row's file, and the row in it from 0."""
        index = bisect_right(self.ends, number)
        return index, number - (self.ends[index - 1] if index else 0)

    def words(self, number: int) -> str:
        """A row for messages: "row 5", of several files "row 5 of chat.jsonl"."""
        index, row = self.place(number)
        return f"row {row + 1:,}" + (f" of {self.files[index].name}" if len(self.files) > 1 else "")


def data_files(found: Sequence[Source], columns: str | None) -> tuple[DataFile, ...]:
    """The files of data sets; `columns` is the mapping of those without their own."""
    return tuple(
        DataFile(Path(source.path), source.columns or columns, name, source.weight, source.max_rows)
        for source, name in zip(found, set_names(found), strict=True)
    )


def read_files(
    files: Sequence[DataFile], *, unwanted: bool = False
) -> Iterator[tuple[int, DataFile, int, Row, Example | None]]:
    """Yields every row's number over all files from 0, its file, its number in the file, and as `read_numbered`. Raises DataError
    as `read_numbered`; of several files it names the file."""
    number = 0
    for file in files:
        try:
            for place, row, example in read_numbered(file.path, file.columns, unwanted=unwanted):
                yield number, file, place, row, example
                number += 1
        except DataError as error:
            if len(files) == 1:
                raise
            raise DataError(error.message, error.fix, file=file.name, line=error.line, field=error.field) from None

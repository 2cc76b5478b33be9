"""Reads the rows of a data set as examples. No torch."""

from collections.abc import Callable, Iterator
from pathlib import Path

from training.data.example import EmptyRow, Example, Row
from training.data.files.formats import file_format
from training.data.files.readers import read_rows
from training.data.mapping import apply, format_of, in_file, parse_mapping
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
    """A function from a row to its format and its example.

    Raises:
        DataError: `columns` is not a valid mapping.
    """
    if columns is None:
        return _detected
    mapping = parse_mapping(columns)
    row_format = format_of(mapping)

    def mapped(row: Row) -> tuple[str, Example]:
        try:
            return row_format, to_example(apply(mapping, row), row_format)
        except DataError as error:
            raise type(error)(error.message, error.fix, field=in_file(mapping, error.field)) from None

    return mapped


def _detected(row: Row) -> tuple[str, Example]:
    row_format = find_format(row).format
    return row_format, to_example(row, row_format)

"""The rows of a data set as the trainer takes them. No torch."""

from collections.abc import Callable, Iterator
from pathlib import Path

from training.example import EmptyRow, Example, Row
from training.failure import DataError
from training.files import file_format
from training.formats import find_format
from training.mapping import apply, format_of, in_file, parse_mapping
from training.readers import read_rows
from training.shapes import to_example

Reader = Callable[[Row], tuple[str, Example]]


def read_examples(path: Path, columns: str | None = None) -> Iterator[Example]:
    """The rows of a checked file that can train; `columns` is a mapping (training/mapping.py), None finds the format.

    Raises:
        DataError: naming the first row that cannot be read.
    """
    return (example for _, _, example in read_numbered(path, columns) if example is not None)


def read_numbered(
    path: Path, columns: str | None = None, *, unwanted: bool = False
) -> Iterator[tuple[int, Row, Example | None]]:
    """Every row with its number from 0, as it stands in the file and as the trainer takes it.

    None stands for a row that is left out: its prompt or answer is empty, or its label says that the answer is unwanted and
    those are not asked for.

    Raises:
        DataError: naming the first row that cannot be read.
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
    """What turns a row into its format and its example.

    Raises:
        DataError: `columns` is no mapping.
    """
    if columns is None:
        return _found
    mapping = parse_mapping(columns)
    found = format_of(mapping)

    def mapped(row: Row) -> tuple[str, Example]:
        try:
            return found, to_example(apply(mapping, row), found)
        except DataError as error:
            raise type(error)(error.message, error.fix, field=in_file(mapping, error.field)) from None

    return mapped


def _found(row: Row) -> tuple[str, Example]:
    found = find_format(row).format
    return found, to_example(row, found)

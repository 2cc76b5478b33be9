"""Reads JSON files that a model or an archive brought: nested or huge ones raise an error, and do not stop the process."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from training.files import open_regular, read_regular

MOST_FILE_BYTES, MOST_FILE_VALUES, MOST_LINE_BYTES = 16 * 2**20, 1_500_000, 4 * 2**20
"""A value takes up to 64 bytes of memory."""
MOST_LINE_VALUES, MOST_PART_BYTES = 20_000, 8 * 2**20
"""Values of a line, and bytes of the lines that are read together: at least one."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_PIECE = re.compile(rb'(?:[^"]*+"(?:[^"\\]++|\\.)*+(?:"|\Z)){1,4000}+', re.DOTALL)
"""Some strings with what stands before each: no search takes long or much memory, whatever the text is."""


class JsonTextError(ValueError):
    """A text that is not valid JSON, or has a value that cannot be stored; the message names it."""


def read(path: Path, most_bytes: int = MOST_FILE_BYTES) -> Any:
    """The value of a JSON file that a model or an archive brought, such as tokenizer_config.json.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        JsonTextError: it is not valid JSON, is longer than `most_bytes`, or has more than MOST_FILE_VALUES values.
    """
    text = read_regular(path, most_bytes + 1)
    if len(text) > most_bytes:
        raise JsonTextError(f"it is longer than {most_bytes:,} bytes")
    return of_file(text)


def of_file(text: bytes, most_values: int = MOST_FILE_VALUES) -> Any:
    """The value of a JSON text of such a file. Raises JsonTextError if it is not valid JSON, or has too many values."""
    check_number(text, most_values)
    try:
        return json.loads(text)
    except RecursionError:
        raise JsonTextError("it has too many levels of nesting") from None
    except ValueError as error:
        raise JsonTextError(str(error)) from None


def lines(path: Path) -> Iterator[Any]:
    """The values of the lines of a JSONL file, such as answers that an archive brought.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        JsonTextError: a line is longer than MOST_LINE_BYTES, or is not valid JSON.
    """
    yield from (value for _, value in placed_lines(path))


def placed_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """As `lines`, each value with the place in the file, in bytes, at which its line begins."""
    with open_regular(path) as stream:
        place = 0
        while line := _line(stream):
            yield place, of_file(line, MOST_LINE_VALUES)
            place += len(line)


def lines_at(path: Path, places: Sequence[int]) -> Iterator[Any]:
    """The values of the lines that begin at these places, the first ones with MOST_PART_BYTES together; without places, no file is
    opened. Raises the same errors as `lines`."""
    if not places:
        return
    length = 0
    with open_regular(path) as stream:
        for place in places:
            stream.seek(place)
            line = _line(stream)
            length += len(line)
            yield of_file(line, MOST_LINE_VALUES)
            if length >= MOST_PART_BYTES:
                return


def _line(stream: BinaryIO) -> bytes:
    line = stream.readline(MOST_LINE_BYTES + 1)
    if len(line) > MOST_LINE_BYTES:
        raise JsonTextError(f"a line is longer than {MOST_LINE_BYTES:,} bytes")
    return line


def check_number(text: str | bytes, most: int) -> None:
    """Counts the values without parsing them: a value takes up to fifty times the memory of its text.

    Raises:
        JsonTextError: there are more than `most`.
    """
    given = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if _separators(given) <= most:
        return
    place = counted = 0
    while counted <= most and (piece := _PIECE.match(given, place)):
        counted, place = counted + _separators(_STRING.sub(b"", piece[0])), piece.end()
    if counted + _separators(given[place:]) > most:
        raise JsonTextError(f"it has more than {most:,} values")


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))

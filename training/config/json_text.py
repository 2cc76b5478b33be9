"""Reads JSON that a user wrote, if its values can be stored in the database and sent in an answer."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.files import open_regular, read_regular

DEEPEST = 64
MOST_VALUES = 100_000
MOST_FILE_BYTES, MOST_FILE_VALUES, MOST_LINE_BYTES = 16 * 2**20, 1_500_000, 4 * 2**20
LARGEST_INTEGER = 2**63 - 1
_TOO_DEEP = f"it has more than {DEEPEST} levels of nesting"


class JsonTextError(ValueError):
    """A text that is not valid JSON, or has a value that cannot be stored; the message names it."""


def load(text: str | bytes) -> Any:
    """The value of a JSON text. Raises JsonTextError if it is not valid JSON, or has more than DEEPEST levels, NaN, an infinite
    number, an integer of more than 64 bits, a lone surrogate or more than MOST_VALUES values."""
    _check_number(text)
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise JsonTextError(_TOO_DEEP) from None
    except UnicodeDecodeError:
        raise JsonTextError("it is not UTF-8") from None
    except ValueError as error:
        raise JsonTextError(str(error)) from None
    _check(value)
    return value


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


def of_file(text: bytes) -> Any:
    """The value of a JSON text of such a file. Raises JsonTextError if it is not valid JSON, or has too many values."""
    _check_number(text, MOST_FILE_VALUES)
    try:
        return json.loads(text)
    except RecursionError:
        raise JsonTextError(_TOO_DEEP) from None
    except ValueError as error:
        raise JsonTextError(str(error)) from None


def lines(path: Path) -> Iterator[Any]:
    """The values of the lines of a JSONL file, such as answers that an archive brought.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        JsonTextError: a line is longer than MOST_LINE_BYTES, or is not valid JSON.
    """
    with open_regular(path) as stream:
        while line := stream.readline(MOST_LINE_BYTES + 1):
            if len(line) > MOST_LINE_BYTES:
                raise JsonTextError(f"a line is longer than {MOST_LINE_BYTES:,} bytes")
            yield of_file(line)


def _check_number(text: str | bytes, most: int = MOST_VALUES) -> None:
    """Counts the values without parsing them: a value takes up to fifty times the memory of its text."""
    given = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if _separators(given) > most and _separators(_STRING.sub(b"", given)) > most:
        raise JsonTextError(f"it has more than {most:,} values")


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def nul(value: Any) -> str | None:
    """The place of the first text with a NUL character, such as "prompts.2.user"; None if there is none.

    No database but SQLite stores such a text, and no program takes it as an argument.
    """
    level = [("", value)]
    while level:
        below: list[tuple[str, Any]] = []
        for place, item in level:
            if isinstance(item, str) and "\0" in item:
                return place
            if isinstance(item, dict):
                if any("\0" in name for name in item):
                    return place
                below += [(f"{place}.{name}" if place else name, inner) for name, inner in item.items()]
            elif isinstance(item, list):
                below += [
                    (f"{place}.{number}" if place else str(number), inner) for number, inner in enumerate(item, 1)
                ]
        level = below
    return None


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)


def _check(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise JsonTextError(_TOO_DEEP)
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += [*item, *item.values()]
            elif isinstance(item, list):
                below += item
            else:
                _check_scalar(item)
        level, depth = below, depth + 1


def _check_scalar(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise JsonTextError("it has a lone surrogate, which UTF-8 cannot represent") from None
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise JsonTextError("it has an integer of more than 64 bits")
    elif isinstance(value, float) and not math.isfinite(value):  # 1e999 is read as infinity
        raise JsonTextError("it has a number beyond the range of 64-bit floating point")


def _refuse(name: str) -> Any:
    raise JsonTextError(f"it has {name}, which is not a JSON number")

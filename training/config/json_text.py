"""Reads JSON that a user wrote, if its values can be stored in the database and sent in an answer."""

import json
import math
from typing import Any

from training.json_files import JsonTextError as JsonTextError  # noqa: PLC0414 those who read JSON catch it
from training.json_files import check_number

HAS_NUL, REMOVE_NUL = "contains a NUL character.", "Remove it."
"""What is wrong with a text of a request in which `nul` finds something, and its cure."""
DEEPEST = 64
MOST_VALUES = 100_000
LARGEST_INTEGER = 2**63 - 1
_TOO_DEEP = f"it has more than {DEEPEST} levels of nesting"


def load(text: str | bytes) -> Any:
    """The value of a JSON text. Raises JsonTextError if it is not valid JSON, or has more than DEEPEST levels, NaN, an infinite
    number, an integer of more than 64 bits, a lone surrogate or more than MOST_VALUES values."""
    check_number(text, MOST_VALUES)
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

"""Reads JSON that a user wrote, so that its value can be stored and shown: as an answer of REST, in a database, as UTF-8."""

import json
from typing import Any

DEEPEST = 64
LARGEST_INTEGER = 2**63 - 1


class JsonTextError(ValueError):
    """A text that is not valid JSON, or has a value that cannot be stored; the message says what is wrong."""


def load(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        JsonTextError: it is not valid JSON, too deep, or has NaN, an infinite number, a huge integer or half a character (a lone
            surrogate).
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise JsonTextError(f"is nested more than {DEEPEST} levels deep") from None
    except UnicodeDecodeError:
        raise JsonTextError("is not text in UTF-8") from None
    except ValueError as error:
        raise JsonTextError(str(error)) from None
    check(value)
    return value


def check(value: Any) -> None:
    """Checks a value that was read from JSON.

    Raises:
        JsonTextError: as `load`.
    """
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise JsonTextError(f"is nested more than {DEEPEST} levels deep")
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
            raise JsonTextError("has half a character (a lone surrogate), which UTF-8 cannot represent") from None
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise JsonTextError("has an integer of more than 64 bits")
    elif isinstance(value, float) and not -_INFINITY < value < _INFINITY:  # 1e999 is read as infinity
        raise JsonTextError("has a number beyond the range of 64-bit floating point")


_INFINITY = float("inf")


def _refuse(name: str) -> Any:
    raise JsonTextError(f"has {name}, which is no JSON number")

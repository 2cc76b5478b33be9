"""JSON that models write: exact numbers, any length of integers, and whether a text is JSON however deep it is nested."""

import json
import re
from decimal import Decimal
from typing import Any

ABSENT = object()
"""What `value_of` returns of a text that is not JSON."""

_FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)
_WHITE = " \t\n\r"
_TOKEN = re.compile(
    r'[ \t\n\r]*(?:(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<scalar>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![\w.])|(?:true|false|null)\b)"
    r"|(?P<mark>[\[\]{},:]))"
)
_CLOSES = {"[": "]", "{": "}"}
_FOLLOWS = {
    ("key", "string"): ":",
    ("first key", "string"): ":",
    ("first key", "}"): "end",
    (":", ":"): "value",
    ("first value", "]"): "end",
    ("end", "]"): "end",
    ("end", "}"): "end",
    ("end", ","): "value",  # or a key
} | {
    (state, kind): follows
    for state in ("value", "first value")
    for kind, follows in (("string", "end"), ("scalar", "end"), ("[", "first value"), ("{", "first key"))
}
"""What may follow a token in a state; a pair that is missing is no JSON."""


def value_of(text: str) -> Any:
    """The value of a JSON text, with numbers as Decimal; `ABSENT` if it is none, or is nested too deep to be read."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=Decimal, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError):
        return ABSENT


def unfenced(text: str) -> str:
    """The text within the fence of a Markdown code block that is all of the text; else the text."""
    match = _FENCE.match(text)
    return match[1] if match else text


def is_json(text: str) -> bool:
    """True if the text is JSON (RFC 8259), of any depth and with integers of any length."""
    return value_of(text) is not ABSENT or _is_deep_json(text.rstrip(_WHITE))


def _is_deep_json(text: str) -> bool:
    """The same for a text that does not end with white space, without recursion."""
    state = "value"
    opened, place = list[str](), 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            return False
        place, kind = match.end(), match["mark"] or match.lastgroup or ""
        state = _FOLLOWS.get((state, kind), "")
        if kind in _CLOSES:
            opened.append(_CLOSES[kind])
        elif kind in _CLOSES.values() and (not opened or opened.pop() != kind):
            return False
        if kind == "," and state and opened:
            state = "value" if opened[-1] == "]" else "key"
        if not state or (kind == "," and not opened):
            return False
    return state == "end" and not opened


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1, which Python's == says."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

"""Saying which columns hold what, where the format is not found: `prompt=qa.question, completion=qa.answers.0.text`."""

import re
from typing import Any

from training.example import Row
from training.failure import DataError

ROLES = (
    "messages", "tools", "system", "prompt", "completion", "instruction", "input", "output", "text", "chosen", "rejected",
    "label", "source", "target",
)  # fmt: skip
_PLANS = {  # what a mapping must name, what it may name besides, and the format that its rows then have
    ("messages",): (("system", "tools", "label"), "messages"),
    ("prompt", "completion"): (("system", "tools", "label"), "prompt/completion"),
    ("instruction", "output"): (("input", "system"), "alpaca"),
    ("chosen", "rejected"): (("prompt", "messages", "instruction", "input", "system", "tools"), "preference"),
    ("source", "target"): ((), "source/target"),
    ("text", "label"): ((), "text/label"),
    ("text",): ((), "text"),
}
_ENTRY = re.compile(r'\s*([^=,]*?)\s*=\s*("[^"]*"|[^,]*?)\s*(?:,|$)')
_FIX = "Write role=column pairs with commas between, such as prompt=question, completion=answers.0.text."
_ABSENT = object()


def parse_mapping(text: str) -> dict[str, str]:
    """A mapping's roles and the path of each. A path with a comma or an equals sign in it stands in double quotes.

    Raises:
        DataError: it is not written so, or its roles make no row that can train.
    """
    if not text.isprintable():
        raise _wrong("holds a character that cannot be printed.", _FIX)
    mapping: dict[str, str] = {}
    position = 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None or not entry[2].strip('" '):
            raise _wrong(f"{text[position:].strip()!r} is no role=column pair.", _FIX)
        role, path = entry[1], entry[2].strip('"')
        if role not in ROLES:
            raise _wrong(f"{role!r} is no role.", f"Use {', '.join(ROLES)}.")
        if role in mapping:
            raise _wrong(f"the role {role} is given twice.", "Give it once.")
        mapping[role], position = path, entry.end()
    format_of(mapping)
    return mapping


def write_mapping(mapping: dict[str, str]) -> str:
    """The line that `parse_mapping` reads."""
    return ", ".join(
        f'{role}="{path}"' if set(path) & set(",=") else f"{role}={path}" for role, path in mapping.items()
    )


def apply(mapping: dict[str, str], row: Row) -> Row:
    """The row with the mapping's roles as its columns. A role whose path leads nowhere in this row is left out."""
    found = {role: _follow(row, path) for role, path in mapping.items()}
    return {role: value for role, value in found.items() if value is not _ABSENT}


def in_file(mapping: dict[str, str], field: str) -> str:
    """A field of a mapped row, such as messages[0].role, under the file's own name for it."""
    role, bracket, rest = field.partition("[")
    return mapping.get(role, role) + bracket + rest


def _follow(row: Row, path: str) -> Any:
    """The value at a path: a column of that very name, else keys and list places with dots between."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _ABSENT
    return value


def format_of(mapping: dict[str, str]) -> str:
    """The format that rows have through a mapping.

    Raises:
        DataError: its roles make no row that can train.
    """
    roles = set(mapping)
    for needed, (more, found) in _PLANS.items():
        if roles >= set(needed) and roles <= {*needed, *more}:
            return "unpaired preference" if "label" in roles - set(needed) else found
    partly = [needed for needed, (more, _) in _PLANS.items() if roles and roles <= {*needed, *more}]
    if partly:
        missing = ", or ".join(" and ".join(sorted(set(needed) - roles)) for needed in partly)
        raise _wrong("is not whole.", f"Say also which column holds {missing}.")
    plans = "; ".join(" and ".join(needed) for needed in _PLANS)
    raise _wrong(f"the roles {', '.join(sorted(roles)) or '(none)'} make no row.", f"What goes together: {plans}.")


def _wrong(message: str, fix: str) -> DataError:
    return DataError(message, fix, field="columns")

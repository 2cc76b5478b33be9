"""Column mappings, for rows whose format is not detected: `prompt=qa.question, completion=qa.answers.0.text`."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from training.data.example import Row
from training.data.row_format import RowFormat
from training.errors import DataError

ROLES = (
    "messages", "tools", "system", "prompt", "completion", "instruction", "input", "output", "history", "text", "chosen",
    "rejected", "label", "source", "target",
)  # fmt: skip
_PLANS = {  # required roles: (optional roles, row format)
    ("messages",): (("system", "tools", "label"), RowFormat.MESSAGES),
    ("prompt", "completion"): (("system", "tools", "label"), RowFormat.COMPLETION),
    ("instruction", "output"): (("input", "system", "history"), RowFormat.ALPACA),
    ("chosen", "rejected"): (
        ("prompt", "messages", "instruction", "input", "system", "history", "tools"),
        RowFormat.PREFERENCE,
    ),
    ("source", "target"): ((), RowFormat.TRANSLATED),
    ("text", "label"): ((), RowFormat.CLASSIFIED),
    ("text",): ((), RowFormat.TEXT),
    ("prompt",): (("system", "tools"), RowFormat.PROMPT),
    ("instruction",): (("input", "system", "history"), RowFormat.PROMPT),
}
_ENTRY = re.compile(r'\s*([^=,]*?)\s*=\s*("[^"]*"|[^,]*?)\s*(?:,|$)')
_FIX = "Write role=column pairs separated by commas, such as prompt=question, completion=answers.0.text."
_ABSENT = object()
Read = TypeVar("Read")


def parse_mapping(text: str) -> dict[str, str]:
    """The roles of a mapping and the path of each. Paths with a comma or an equals sign need double quotes. Raises DataError if
    the text is not a mapping, or its roles form no row format."""
    if not text.isprintable():
        raise _wrong("contains a character that cannot be printed.", _FIX)
    mapping: dict[str, str] = {}
    position = 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None or not entry[2].strip('" '):
            raise _wrong(f"{text[position:].strip()!r} is not a role=column pair.", _FIX)
        role, path = entry[1], entry[2].strip('"')
        if role not in ROLES:
            raise _wrong(f"{role!r} is not a role.", f"Use {', '.join(ROLES)}.")
        if role in mapping:
            raise _wrong(f"the role {role} is given twice.", "Write it once.")
        mapping[role], position = path, entry.end()
    format_of(mapping)
    return mapping


def write_mapping(mapping: Mapping[str, str]) -> str:
    """The mapping as text that `parse_mapping` reads."""
    return ", ".join(f"{role}={_quoted(path)}" for role, path in mapping.items())


def _quoted(path: str) -> str:
    return f'"{path}"' if set(path) & set(",=") or path != path.strip() else path


def apply(mapping: dict[str, str], row: Row) -> Row:
    """The row with the mapping's roles as its columns, without roles whose path does not exist in this row."""
    values = {role: _follow(row, path) for role, path in mapping.items()}
    return {role: value for role, value in values.items() if value is not _ABSENT}


def through(mapping: dict[str, str], row: Row, read: Callable[[Row], Read]) -> Read:
    """What `read` makes of the mapped row; its errors name the file's columns."""
    try:
        return read(apply(mapping, row))
    except DataError as error:
        raise type(error)(error.message, error.fix, field=in_file(mapping, error.field)) from None


def in_file(mapping: dict[str, str], field: str) -> str:
    """The file's name for a field of a mapped row, such as messages[0].role."""
    role, bracket, rest = field.partition("[")
    return mapping.get(role, role) + bracket + rest


def _follow(row: Row, path: str) -> Any:
    """The value at a path: a column with exactly that name, else keys and list indexes separated by dots."""
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
    """The row format that a mapping gives. Raises DataError if its roles form no row format."""
    roles = set(mapping)
    for needed, (more, row_format) in _PLANS.items():
        if roles >= set(needed) and roles <= {*needed, *more}:
            return RowFormat.UNPAIRED if "label" in roles - set(needed) else row_format
    partly = [needed for needed, (more, _) in _PLANS.items() if roles and roles <= {*needed, *more}]
    if partly:
        missing = ", or ".join(" and ".join(sorted(set(needed) - roles)) for needed in partly)
        raise _wrong("is incomplete.", f"Add the column for {missing}.")
    plans = "; ".join(" and ".join(needed) for needed in _PLANS)
    raise _wrong(
        f"the roles {', '.join(sorted(roles)) or '(none)'} form no row format.", f"Use one of these groups: {plans}."
    )


def _wrong(message: str, fix: str) -> DataError:
    return DataError(message, fix, field="columns")

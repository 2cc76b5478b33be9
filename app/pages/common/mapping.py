"""Mappings of a data set's columns to roles while a user chooses them: kinds of rows, and mappings that are not complete. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.texts import gettext_noop
from training.data.mapping import ROLES
from training.data.row_format import RowFormat
from training.data.row_formats import UNKNOWN

_MOST_PATHS, _DEPTH = 60, 4
# A name begins where no letter stands before it, so that a long text takes linear time.
_PAIR = re.compile(r'(?<!\w)(\w+)\s*=\s*("[^"]*"|[^,]*)')

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "prompt": (gettext_noop("Prompt and answer"), ("prompt", "completion", "system")),
    "instruction": (gettext_noop("Instruction"), ("instruction", "input", "output", "system")),
    "messages": (gettext_noop("Messages"), ("messages", "tools", "system")),
    "preference": (gettext_noop("Preference"), ("prompt", "messages", "chosen", "rejected")),
    "label": (gettext_noop("Unpaired preference"), ("prompt", "completion", "label")),
    "prompts": (gettext_noop("Prompt alone"), ("prompt", "system", "tools")),
    "text": (gettext_noop("Text"), ("text",)),
    "class": (gettext_noop("Text and class"), ("text", "label")),
    "source": (gettext_noop("Source and target"), ("source", "target")),
}
"""The kinds of rows that columns can be mapped to: name, label and roles."""

_OF_FORMAT = {
    RowFormat.ALPACA: "instruction",
    RowFormat.SHAREGPT: "messages",
    RowFormat.MESSAGES: "messages",
    RowFormat.TREE: "prompt",
    RowFormat.COMPLETION: "prompt",
    RowFormat.PROMPT: "prompts",
    RowFormat.PREFERENCE: "preference",
    RowFormat.UNPAIRED: "label",
    RowFormat.TEXT: "text",
    RowFormat.CLASSIFIED: "class",
    RowFormat.TRANSLATED: "source",
}
"""The kind that the page suggests for rows of a format."""
_OPTIONAL_IN = {"preference": {"prompt", "messages"}}
_COMMON_NAMES = {
    "messages": ("conversations", "conversation"),
    "completion": ("response", "answer"),
    "prompt": ("question",),
}
_OPTIONAL = frozenset({"system", "input", "tools"})


def paths(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the sample, and the dotted paths inside nested ones, such as qa.answers.0.text."""
    unique = {path: None for row in rows for name, value in row.items() for path in _inside(name, value, _DEPTH)}
    return list(unique)[:_MOST_PATHS]


def _inside(path: str, value: Any, depth: int) -> Iterator[str]:
    yield path
    if depth and isinstance(value, dict):
        for name, inner in value.items():
            yield from _inside(f"{path}.{name}", inner, depth - 1)
    elif depth and isinstance(value, list) and value and not _is_message(value[0]):
        yield from _inside(f"{path}.0", value[0], depth - 1)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and bool({"role", "from"} & value.keys())


def kind_of(mapping: Mapping[str, str], shape: str) -> str:
    """The kind (in KINDS) of a mapping: by its roles, else by the detected format. A prompt of an unknown format
    waits for its answer."""
    if mapping:
        kinds = [kind for kind in KINDS if kind != "prompts" or shape != UNKNOWN]
        return max(kinds, key=lambda kind: _fit(mapping, KINDS[kind][1]))
    return _OF_FORMAT[RowFormat(shape)] if shape in set(RowFormat) else "prompt"


def _fit(mapping: Mapping[str, str], roles: Sequence[str]) -> tuple[int, int]:
    """How well a kind of rows fits a mapping: roles in common, then few missing roles."""
    return sum(role in roles for role in mapping), -sum(role not in mapping and role not in _OPTIONAL for role in roles)


def partial(written: str) -> dict[str, str]:
    """A possibly incomplete mapping from its text; invalid parts are dropped."""
    pairs = {role: _unquoted(path.strip()) for role, path in _PAIR.findall(written)}
    return {role: path for role, path in pairs.items() if role in ROLES and path and path.isprintable()}


def _unquoted(path: str) -> str:
    return path[1:-1] if path[:1] == path[-1:] == '"' and len(path) > 1 else path.strip('"')


def for_kind(mapping: Mapping[str, str], kind: str, columns: Sequence[str]) -> dict[str, str]:
    """The mapping for another kind: its fitting roles, and columns with a role's name or a common name of it."""
    roles = {role: mapping.get(role) or _column_named(role, columns) for role in KINDS[kind][1]}
    return {role: path for role, path in roles.items() if path}


def _column_named(role: str, columns: Sequence[str]) -> str:
    return next((name for name in (role, *_COMMON_NAMES.get(role, ())) if name in columns), "")


def missing_roles(mapping: Mapping[str, str], kind: str) -> list[str]:
    """The roles that the kind requires and the mapping lacks."""
    optional = _OPTIONAL | _OPTIONAL_IN.get(kind, set())
    return [role for role in KINDS[kind][1] if role not in optional and role not in mapping]

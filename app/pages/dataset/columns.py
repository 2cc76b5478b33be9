"""The tab Columns: the mapping of columns to roles, with a preview of mapped rows. Pure functions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.pages.common.html import each, panel
from app.pages.dataset.view import View, select, to
from app.words import numbers
from training.data.mapping import ROLES, write_mapping

_MOST_PATHS, _DEPTH = 60, 4
_PAIR = re.compile(r'(\w+)\s*=\s*("[^"]*"|[^,]*)')

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "prompt": ("Prompt and answer", ("prompt", "completion", "system")),
    "instruction": ("Instruction", ("instruction", "input", "output", "system")),
    "messages": ("Messages", ("messages", "tools", "system")),
    "preference": ("Preference", ("prompt", "messages", "chosen", "rejected")),
    "label": ("Unpaired preference", ("prompt", "completion", "label")),
    "text": ("Text", ("text",)),
    "source": ("Source and target", ("source", "target")),
}
"""The kinds of rows that columns can be mapped to: name, label and roles."""

_OPTIONAL_IN = {"preference": {"prompt", "messages"}}
_COMMON_NAMES = {
    "messages": ("conversations", "conversation"),
    "completion": ("response", "answer"),
    "prompt": ("question",),
}
_OPTIONAL = frozenset({"system", "input", "tools"})
_NOTES = {
    "prompt": "input of the model",
    "completion": "answer to learn",
    "system": "optional",
    "instruction": "input of the model",
    "input": "optional, appended to the instruction",
    "output": "answer to learn",
    "messages": "conversation",
    "tools": "optional",
    "chosen": "preferred answer",
    "rejected": "rejected answer",
    "label": "true for a desirable answer",
    "text": "text to learn",
    "source": "input of the model",
    "target": "output to learn",
}


@dataclass(frozen=True)
class MappedRow:
    """A sample row after mapping: its parts (label, text, true if it carries loss), or its problem."""

    number: int
    parts: Sequence[tuple[str, str, bool]] = ()
    problem: str = ""
    fix: str = ""


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
    """The kind (in KINDS) of a mapping: by its roles, else by the detected format."""
    if mapping:
        return max(KINDS, key=lambda kind: _fit(mapping, KINDS[kind][1]))
    by_shape = {
        "alpaca": "instruction",
        "messages": "messages",
        "sharegpt": "messages",
        "preference": "preference",
        "text": "text",
    }
    return by_shape.get(shape, {"source/target": "source", "unpaired preference": "label"}.get(shape, "prompt"))


def _fit(mapping: Mapping[str, str], roles: Sequence[str]) -> tuple[int, int]:
    """How well a kind of rows fits a mapping: roles in common, then few missing roles."""
    return sum(role in roles for role in mapping), -sum(role not in mapping and role not in _OPTIONAL for role in roles)


def partial(written: str) -> dict[str, str]:
    """A possibly incomplete mapping from its text; invalid parts are dropped."""
    pairs = {role: path.strip().strip('"') for role, path in _PAIR.findall(written)}
    return {role: path for role, path in pairs.items() if role in ROLES and path}


def with_role(mapping: Mapping[str, str], role: str, path: str) -> dict[str, str]:
    """The mapping with `role` mapped to `path`, or unmapped if `path` is empty."""
    return {name: column for name, column in {**mapping, role: path}.items() if column}


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


def columns_html(
    mapping: Mapping[str, str],
    kind: str,
    columns: Sequence[str],
    preview: Sequence[MappedRow],
    view: View,
    saved: str | None,
    *,
    allowed: bool = True,
) -> Markup:
    """The roles with their columns, the saved mapping, and the mapped sample rows.

    `allowed` is true if the caller may save a mapping.
    """
    roles = Markup('<div class="roles">{}</div>').format(
        Markup("").join(_role(role, mapping, columns) for role in KINDS[kind][1])
    )
    chooser = panel(
        "Column mapping",
        _kinds(mapping, kind, columns, view) + roles + _actions(mapping, kind, saved, allowed=allowed),
    )
    shown = panel("Preview", preview_html(preview))
    return Markup('<div class="columns"><div class="seven">{}</div><div class="five">{}</div></div>').format(
        chooser, shown
    )


def preview_html(preview: Sequence[MappedRow]) -> Markup:
    """The mapped sample rows with the part that carries loss marked, or the problem of a row."""
    if not preview:
        return Markup('<p class="note">Choose a column for each role to see three mapped rows.</p>')
    return Markup('<div class="as-seen">{}</div>').format(Markup("").join(_article(row) for row in preview))


def _article(row: MappedRow) -> Markup:
    head = Markup("<h3>Row {}</h3>").format(numbers.count(row.number))
    if row.problem:
        return Markup('<article>{}<div class="wrong"><b class="bad">{}</b> {}</div></article>').format(
            head, row.problem, row.fix
        )
    parts = [
        ("answer" if learned else "", label, "answer" if learned else "", numbers.shorten(text, 600))
        for label, text, learned in row.parts
    ]
    return Markup("<article>{}<dl>{}</dl></article>").format(
        head, each('<dt class="{}">{}</dt><dd class="{}">{}</dd>', parts)
    )


def _kinds(mapping: Mapping[str, str], kind: str, columns: Sequence[str], view: View) -> Markup:
    links = [
        to(
            view,
            label,
            key=f"kind-{name}",
            current=name == kind,
            columns=write_mapping(for_kind(mapping, name, columns)),
            kind=name,
        )
        for name, (label, _) in KINDS.items()
    ]
    return Markup('<div class="kinds">{}</div>').format(Markup("").join(links))


def _role(role: str, mapping: Mapping[str, str], columns: Sequence[str]) -> Markup:
    chosen = mapping.get(role, "")
    listed = [*columns, *([chosen] if chosen and chosen not in columns else [])]
    choices = [("", "none"), *[(path, path) for path in listed]]
    return select(f"role.{role}", role.capitalize(), chosen, choices, note=_NOTES[role])


def _actions(mapping: Mapping[str, str], kind: str, saved: str | None, *, allowed: bool) -> Markup:
    missing = missing_roles(mapping, kind)
    if missing:
        return Markup('<p class="note">Choose a column for: {}.</p>').format(", ".join(missing))
    line = write_mapping(dict(mapping))
    same = line == (saved or "")
    setting = Markup('<p class="note">In a run\'s settings: <code>columns: {}</code></p>').format(line)
    if not allowed:
        return setting + Markup('<p class="note">Only the owner of the data set can save a mapping.</p>')
    button = Markup(
        '<button type="button" class="button primary" id="save-mapping" data-send="{}"{}>{}</button>'
    ).format('{"save": true}', Markup(" disabled") if same else "", "Saved" if same else "Save mapping")
    remove = Markup(' <button type="button" class="button" data-send="{}">Remove mapping</button>').format(
        '{"forget": true}'
    )
    return setting + button + (remove if saved else "")

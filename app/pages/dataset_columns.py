"""The mapping page: which column is the prompt, which the answer, and what the model would get. Pure functions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app import text
from app.pages.dataset_links import select, to
from app.pages.dataset_view import View
from app.pages.parts import each, panel
from training.mapping import ROLES, write_mapping

_MOST_PATHS, _DEPTH = 60, 4
_PAIR = re.compile(r'(\w+)\s*=\s*("[^"]*"|[^,]*)')

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "prompt": ("Prompt and answer", ("prompt", "completion", "system")),
    "instruction": ("Instruction", ("instruction", "input", "output", "system")),
    "messages": ("Messages", ("messages", "tools", "system")),
    "preference": ("Preference", ("prompt", "messages", "chosen", "rejected")),
    "label": ("Good or bad", ("prompt", "completion", "label")),
    "text": ("Text", ("text",)),
    "source": ("Source and target", ("source", "target")),
}
"""What rows may be mapped to: a name, its label, and the roles that it has."""

_MAY_LACK = {"preference": {"prompt", "messages"}}
_ALSO_CALLED = {
    "messages": ("conversations", "conversation"),
    "completion": ("response", "answer"),
    "prompt": ("question",),
}
_OPTIONAL = frozenset({"system", "input", "tools"})
_NOTES = {
    "prompt": "what the model reads",
    "completion": "the answer it learns",
    "system": "optional",
    "instruction": "what the model reads",
    "input": "optional, added to it",
    "output": "the answer it learns",
    "messages": "the conversation",
    "tools": "optional",
    "chosen": "the better answer",
    "rejected": "the worse answer",
    "label": "true where it is good",
    "text": "learned from end to end",
    "source": "what the model reads",
    "target": "what it writes",
}


@dataclass(frozen=True)
class Seen:
    """A sample row as the model would get it: parts (label, text, whether it is learned), or what is wrong with it."""

    number: int
    parts: Sequence[tuple[str, str, bool]] = ()
    problem: str = ""
    fix: str = ""


def paths(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column of the sample, and the places inside nested ones, dotted: qa.answers.0.text."""
    found: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            for path in _inside(name, value, _DEPTH):
                found.setdefault(path)
    return list(found)[:_MOST_PATHS]


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
    """Which of KINDS a mapping is of: by its roles, else by the format that was found."""
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
    """How well a kind of rows suits a mapping: roles in common, then few to spare."""
    return sum(role in roles for role in mapping), -sum(role not in mapping and role not in _OPTIONAL for role in roles)


def partial(written: str) -> dict[str, str]:
    """A mapping that may not be whole yet; what makes no sense is left out."""
    found = {role: path.strip().strip('"') for role, path in _PAIR.findall(written)}
    return {role: path for role, path in found.items() if role in ROLES and path}


def with_role(mapping: Mapping[str, str], role: str, path: str) -> dict[str, str]:
    """The mapping with a role given to a column, or to none where `path` is empty."""
    return {name: column for name, column in {**mapping, role: path}.items() if column}


def for_kind(mapping: Mapping[str, str], kind: str, columns: Sequence[str]) -> dict[str, str]:
    """The mapping for another kind: what fits of it is kept, and columns with a role's own or usual name are taken."""
    found = {role: mapping.get(role) or _own(role, columns) for role in KINDS[kind][1]}
    return {role: path for role, path in found.items() if path}


def _own(role: str, columns: Sequence[str]) -> str:
    return next((name for name in (role, *_ALSO_CALLED.get(role, ())) if name in columns), "")


def lacking(mapping: Mapping[str, str], kind: str) -> list[str]:
    """The roles that the kind needs and the mapping does not give."""
    may_lack = _OPTIONAL | _MAY_LACK.get(kind, set())
    return [role for role in KINDS[kind][1] if role not in may_lack and role not in mapping]


def columns_html(
    mapping: Mapping[str, str],
    kind: str,
    columns: Sequence[str],
    seen: Sequence[Seen],
    view: View,
    saved: str | None,
    *,
    mine: bool = True,
) -> Markup:
    """The roles with the columns that they may take, what is saved, and three rows as the model would get them.

    `mine` says whether whoever looks may save a mapping.
    """
    roles = Markup('<div class="roles">{}</div>').format(
        Markup("").join(_role(role, mapping, columns) for role in KINDS[kind][1])
    )
    chooser = panel(
        "Which column is what",
        _kinds(mapping, kind, columns, view) + roles + _standing(mapping, kind, saved, mine=mine),
    )
    shown = panel("What the model would get", seen_html(seen))
    return Markup('<div class="columns"><div class="seven">{}</div><div class="five">{}</div></div>').format(
        chooser, shown
    )


def seen_html(seen: Sequence[Seen]) -> Markup:
    """Sample rows, the learned part marked; what is wrong with a row in its place."""
    if not seen:
        return Markup(
            '<p class="note">Choose a column for each role: three rows appear here as the model would get them.</p>'
        )
    return Markup('<div class="as-seen">{}</div>').format(Markup("").join(_article(one) for one in seen))


def _article(one: Seen) -> Markup:
    head = Markup("<h3>Row {}</h3>").format(text.count(one.number))
    if one.problem:
        return Markup('<article>{}<div class="wrong"><b class="bad">{}</b> {}</div></article>').format(
            head, one.problem, one.fix
        )
    parts = [
        ("answer" if learned else "", label, "answer" if learned else "", text.shorten(said, 600))
        for label, said, learned in one.parts
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


def _standing(mapping: Mapping[str, str], kind: str, saved: str | None, *, mine: bool) -> Markup:
    lacks = lacking(mapping, kind)
    if lacks:
        return Markup('<p class="note">Still to choose: {}.</p>').format(", ".join(lacks))
    line = write_mapping(dict(mapping))
    same = line == (saved or "")
    told = Markup('<p class="note">As a setting of a run: <code>columns: {}</code></p>').format(line)
    if not mine:
        return told + Markup('<p class="note">Only the owner of the data set can save a mapping with it.</p>')
    button = Markup(
        '<button type="button" class="button primary" id="save-mapping" data-send="{}"{}>{}</button>'
    ).format('{"save": true}', Markup(" disabled") if same else "", "Saved" if same else "Save mapping")
    forget = (
        Markup(' <button type="button" class="button" data-send="{}">Forget the mapping</button>').format(
            '{"forget": true}'
        )
        if saved
        else ""
    )
    return told + button + forget

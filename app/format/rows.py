"""Values of a data set's rows and their tokens as text. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

CELL_CHARACTERS, TURN_CHARACTERS, TURNS = 400, 200, 4
"""How much of a value is shown in a cell: of a text, and of how many turns of a conversation."""

_CELL_LINES = 6
CONTINUED = "⋯"
"""Shown for a token that holds only the first bytes of a character."""

_VISIBLE = str.maketrans({" ": "·", "\t": "→\t", "\n": "⏎\n", "\r": "␍", "\u00a0": "⍽"})


def text_of(value: Any, indent: int | None = None) -> str:
    """A text as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=indent)


def is_conversation(value: Any) -> bool:
    """True for a list of messages."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and any(key in turn for key in ("role", "from")) for turn in value)
    )


def turns(value: list[Mapping[str, Any]]) -> list[tuple[Any, str]]:
    """Who says what in each message of a conversation, with calls of tools as JSON."""
    return [(turn.get("role", turn.get("from")), _content(turn)) for turn in value]


def any_long(values: Iterable[Any]) -> bool:
    """True if the cells of a row show only a part of some value."""
    return any(map(_is_long, values))


def token_signs(tokens: Iterable[Any]) -> set[str]:
    """Which of the signs special, cut and continued a legend of these tokens explains."""
    signs: set[str] = set()
    for token in tokens:
        if token.special:
            signs.add("special")
        if token.cut:
            signs.add("cut")
        if not token.text:
            signs.add("continued")
    return signs


def visible(text: str) -> str:
    """A token's text with visible white space; other unprintable characters as their code point."""
    shown = text.translate(_VISIBLE)
    return (
        "".join(letter if letter.isprintable() or letter in "\n\t" else f"[U+{ord(letter):04X}]" for letter in shown)
        or CONTINUED
    )


def _is_long(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > CELL_CHARACTERS or value.count("\n") > _CELL_LINES
    if is_conversation(value):
        return len(value) > TURNS or any(len(said) > TURN_CHARACTERS for _, said in turns(value))
    return isinstance(value, (dict, list)) and len(text_of(value)) > CELL_CHARACTERS


def _content(turn: Mapping[str, Any]) -> str:
    content = turn.get("content", turn.get("value"))
    calls = turn.get("tool_calls")
    return ("" if content is None else text_of(content)) + (f" {text_of(calls)}" if calls else "")

"""The columns that rows use: those of a format, others whose meaning is certain without a mapping, and those that nothing reads."""

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from training.data.conversations import CONVERSATION_COLUMNS
from training.data.example import Example, Row
from training.data.forms import read_columns
from training.data.mapping import parse_mapping
from training.data.row_format import RowFormat
from training.tables import only

LANGUAGE = re.compile(r"[a-z]{2}(_[A-Z]{2})?")
NAMES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
_ASKED, _ANSWERED, _GIVEN = NAMES["asked"], NAMES["answered"], NAMES["given"]
MORE = {"input": _GIVEN, "system": ("system", "system_prompt"), "history": ("history",)}
"""Optional roles, and the usual names of their columns."""

_ANSWER_PAIRS = (("chosen", "rejected"), ("response_j", "response_k"))
_COMPETING = frozenset([*_ASKED, *_ANSWERED, *_GIVEN, *chain(*_ANSWER_PAIRS), *NAMES["competing"]])
"""Columns that might be meant too: with one of them beside a pair the meaning is not certain."""
_NUMBERED = re.compile(rf"({'|'.join((*_ASKED, *_ANSWERED))}|option|choice|opt|op)[ _]?(\d+|[a-e])|[a-e]")
_OWN = only({
    RowFormat.PREFERENCE: (("prompt", "chosen"), ("instruction", "output")), RowFormat.ALPACA: (("instruction", "output"),),
    RowFormat.COMPLETION: (("prompt", "completion"),), RowFormat.TRANSLATED: (("source", "target"),),
})  # fmt: skip
"""The columns of formats that may have others in their place."""
_TOOLS = ("tools", "functions")
_PAIR = ("prompt", "completion", "system", *_TOOLS)
_ALPACA = ("instruction", "input", "output", "system", "history")
_CHAT = (*CONVERSATION_COLUMNS, "system", *_TOOLS)
_READ: dict[RowFormat, tuple[str, ...]] = {
    RowFormat.ALPACA: _ALPACA,
    RowFormat.SHAREGPT: _CHAT,
    RowFormat.MESSAGES: _CHAT,
    RowFormat.COMPLETION: _PAIR,
    RowFormat.PROMPT: ("prompt", "instruction", "input", "history", "system", *_TOOLS),
    RowFormat.PREFERENCE: ("chosen", "rejected", "prompt", *CONVERSATION_COLUMNS, *_ALPACA, *_TOOLS),
    RowFormat.UNPAIRED: ("label", *_CHAT, *_PAIR),
    RowFormat.TREE: ("prompt", "text", "role", "replies"),
    RowFormat.TEXT: ("text",),
    RowFormat.CLASSIFIED: ("text", "label"),
    RowFormat.TRANSLATED: ("source", "target"),
}
JUDGING = frozenset(NAMES["judging"])
"""Columns that say whether an answer is good: beside answers that are all trained, bad ones are trained as good ones."""
_MAY_VANISH = ("system", "prompt", "instruction", "input")


def usual_columns(row: Row) -> tuple[str, dict[str, str]] | None:
    """The format of a row, and the path in it of each role; None if its columns are not certain, or a value is no text."""
    found = _by_names(tuple(row))
    if found is not None:
        values = {role: row[column] for role, column in found[1].items()}
        turns = values.pop("history", None)
        texts = all(isinstance(value, str) or value is None for value in values.values())
        if texts and any(values.values()) and (not turns or isinstance(turns, list)):
            return found
    codes = _languages(row.get("translation"))
    return (RowFormat.TRANSLATED, dict(zip(("source", "target"), codes, strict=True))) if codes else None


def in_roles(row: Row, row_format: str) -> dict[str, str] | None:
    """The path of each role of a row of that format that does not have the format's own columns."""
    if _has_own(row, row_format):
        return None
    usual = usual_columns(row)
    return usual[1] if usual and usual[0] == row_format else None


def _has_own(names: Collection[str], row_format: str) -> bool:
    return row_format not in _OWN or any(all(name in names for name in own) for own in _OWN[RowFormat(row_format)])


def names_in_use(names: tuple[str, ...], row_format: str) -> set[str] | None:
    """The columns that rows with these columns and of that format use in the place of the format's own; None if they have those."""
    if _has_own(names, row_format):
        return None
    if row_format == RowFormat.TRANSLATED:
        return {"translation"}
    found = _by_names(names)
    return set(found[1].values()) if found and found[0] == row_format else None


@lru_cache(maxsize=1024)  # rows mostly have the same columns
def _by_names(names: tuple[str, ...]) -> tuple[str, dict[str, str]] | None:
    """The format and the column of each role, if the names leave no doubt: one question, one answer or two to compare."""
    known = {name.lower(): name for name in names}
    asked = next((name for name in _ASKED if name in known), None)
    pair = next((pair for pair in _ANSWER_PAIRS if {*pair} <= known.keys()), None)
    answered = None if pair else next((name for name in _ANSWERED if name in known and name != asked), None)
    if asked is None or not (pair or answered) or len(known) < len(names):
        return None
    more = {
        role: next((name for name in usual if name in known and name != asked), None) for role, usual in MORE.items()
    }
    plain = asked == "prompt"  # as in rows of prompt and completion
    if plain and (pair or more["input"] or more["history"]):
        return None
    roles = {"prompt" if plain else "instruction": asked} | {role: name for role, name in more.items() if name}
    roles |= dict(zip(("chosen", "rejected"), pair, strict=True)) if pair else {}
    roles |= {"completion" if plain else "output": answered} if answered else {}
    others = known.keys() - roles.values()
    if others & _COMPETING or any(_NUMBERED.fullmatch(name) for name in others):
        return None
    row_format = RowFormat.PREFERENCE if pair else RowFormat.COMPLETION if plain else RowFormat.ALPACA
    return row_format, {role: known[name] for role, name in roles.items()}


def _languages(value: Any) -> list[str]:
    """The paths of the two texts of a translation, under the codes of their languages."""
    texts = value if isinstance(value, dict) else {}
    codes = [
        f"translation.{code}" for code, text in texts.items() if LANGUAGE.fullmatch(code) and isinstance(text, str)
    ]
    return codes if len(codes) == len(texts) == 2 else []


def unused_columns(columns: Iterable[str], formats: Iterable[str], mapping: str | None = None) -> list[str]:
    """The columns that rows of these formats, or of this mapping, do not read."""
    return list(_unused(tuple(columns), tuple(formats), mapping))


@lru_cache(maxsize=1024)  # rows mostly have the same columns
def _unused(names: tuple[str, ...], formats: tuple[str, ...], mapping: str | None) -> tuple[str, ...]:
    if mapping:
        paths = parse_mapping(mapping).values()
        read = {path if path in names else path.partition(".")[0] for path in paths}
    else:
        usual = {row_format: names_in_use(names, row_format) for row_format in formats}
        read = {name for row_format in formats for name in usual[row_format] or _columns_read(names, row_format)}
        chats = [name for name in CONVERSATION_COLUMNS if name in names]
        read = (read - set(chats[1:])) | read_columns(names)  # of the chats only the first is read
    return tuple(name for name in names if name not in read)


def _columns_read(names: tuple[str, ...], row_format: str) -> tuple[str, ...]:
    return _READ[RowFormat(row_format)] if row_format in set(RowFormat) else names


def vanished_texts(row: Row, example: Example) -> Iterator[str]:
    """The columns that are read, and whose text is in no part of the example: a conversation has its own system message, or
    begins otherwise than the prompt."""
    if example.messages is None:
        return
    for name in _MAY_VANISH:
        text = row.get(name)
        if isinstance(text, str) and not any(text.strip() in message["content"] for message in example.messages):
            yield name

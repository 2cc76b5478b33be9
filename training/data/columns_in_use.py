"""The columns that each row format reads, those that nothing reads, and texts that are read and become no part of a row."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from training.data.example import Example, Message, Row
from training.data.mapping import parse_mapping
from training.data.to_examples import CONVERSATION_COLUMNS
from training.data.usual_columns import names_in_use

_TOOLS = ("tools", "functions")
_PAIR = ("prompt", "completion", "system", *_TOOLS)
_ALPACA = ("instruction", "input", "output", "system", "history")
_CHAT = (*CONVERSATION_COLUMNS, "system", *_TOOLS)
_READ: dict[str, tuple[str, ...]] = {
    "alpaca": _ALPACA,
    "sharegpt": _CHAT,
    "messages": _CHAT,
    "prompt/completion": _PAIR,
    "preference": ("chosen", "rejected", "prompt", *CONVERSATION_COLUMNS, *_ALPACA, *_TOOLS),
    "unpaired preference": ("label", *_CHAT, *_PAIR),
    "message tree": ("prompt", "text", "role", "replies"),
    "text": ("text",),
    "text/label": ("text", "label"),
    "source/target": ("source", "target"),
}
_MAY_VANISH = ("system", "prompt", "instruction", "input")


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
        read = {name for row_format in formats for name in usual[row_format] or _READ.get(row_format, names)}
        chats = [name for name in CONVERSATION_COLUMNS if name in names]
        read -= set(chats[1:])  # only the first of them is read
    return tuple(name for name in names if name not in read)


def vanished_texts(row: Row, example: Example) -> Iterator[str]:
    """The columns that are read, and whose text is in no part of the example: a conversation has its own system message, or
    begins otherwise than the prompt."""
    if example.messages is None:
        return
    for name in _MAY_VANISH:
        text = row.get(name)
        if isinstance(text, str) and text.strip() and not _is_in(text.strip(), example.messages):
            yield name


def _is_in(text: str, messages: list[Message]) -> bool:
    return any(text in message["content"] for message in messages)

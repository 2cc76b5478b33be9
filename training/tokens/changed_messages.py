"""Messages with another text in one part: what changes in a rendering is where the template writes that part. No torch."""

from bisect import bisect_left
from collections.abc import Iterator

from training.chat.reasoning import FIELDS
from training.data.example import Message, Row
from training.tokens.rendered import Span

PROBE = "\uf8a4"
"""A private character, which no data set contains and no template changes."""


def another(message: Message) -> Message:
    """The message with another text, reasoning and arguments of its calls; what is empty stays empty."""
    changed = {key: value for key, value in message.items() if key not in FIELDS}
    changed["content"] = PROBE if message["content"].strip() else message["content"]
    if message.get("tool_calls"):
        changed["tool_calls"] = [_other_call(call) for call in message["tool_calls"]]
    elif not changed["content"].strip() and len(changed) < len(message):
        changed["content"] = PROBE
    return changed


def each_changed(message: Message) -> Iterator[tuple[Message, bool]]:
    """The message with another one of its parts, and True if a special token before the part belongs to it: reasoning, each call,
    text."""
    for field in FIELDS:
        if isinstance(message.get(field), str) and message[field].strip():
            yield message | {field: PROBE}, True
    calls = message.get("tool_calls") or []
    for number, call in enumerate(calls):
        yield message | {"tool_calls": [*calls[:number], _other_call(call), *calls[number + 1 :]]}, True
    if message["content"].strip():
        yield message | {"content": PROBE}, False


def _other_call(call: Row) -> Row:
    if isinstance(call.get("function"), dict):
        return call | {"function": _other_call(call["function"])}
    return call | {"arguments": PROBE if isinstance(call.get("arguments"), str) else {PROBE: PROBE}}


def difference(text: str, other: str) -> Span:
    """The part [start, end) of `text` that differs from `other`; empty if `other` only has more."""
    first = bisect_left(range(1, min(len(text), len(other)) + 1), True, key=lambda size: text[:size] != other[:size])
    longest = min(len(text), len(other)) - first
    same = bisect_left(range(1, longest + 1), True, key=lambda size: text[-size:] != other[-size:])
    return first, len(text) - same

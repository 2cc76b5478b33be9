"""The reasoning of answers (<think>...</think> or a field): left to the chat template, dropped from earlier turns, or kept in them.

Templates of thinking models drop the reasoning of every answer before the last question. To keep it, such an answer is rendered
with a mark in front of its text, which is then replaced by the block that the same template writes for a last answer.
"""

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

from training.config.choices import Reasoning
from training.data.example import Message
from training.errors import DataError

FIELDS = ("reasoning_content", "reasoning", "thinking")
_INLINE = re.compile(r"\s*<(think|thinking|thought|reasoning)>(.*?)</\1>\s*", re.DOTALL)
# Private characters, which no data set contains and no template changes.
_MARK, _CONTENT, _INSIDE, _OTHER = "\uf8a0", "\uf8a1", "\uf8a2", "\uf8a3"
Write = Callable[[list[Message]], str]


def split(message: Message) -> tuple[str, Message]:
    """The reasoning of an answer ("" if it has none), and the answer without it."""
    fields = [message[field] for field in FIELDS if isinstance(message.get(field), str)]
    plain = {key: value for key, value in message.items() if key not in FIELDS}
    inline = _INLINE.match(str(message["content"]))
    if inline:
        plain["content"] = message["content"][inline.end() :]
        return (fields or [inline[2]])[0].strip("\n"), plain
    return (fields or [""])[0].strip("\n"), plain


def last_question(messages: list[Message]) -> int:
    """The index of the last user message; -1 if there is none."""
    return max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)


class ReasoningWriter:
    """Renders messages with one template (`write`) and the reasoning of earlier answers as configured."""

    def __init__(self, write: Write, reasoning: Reasoning) -> None:
        self._write, self._reasoning = write, reasoning

    def __call__(self, messages: list[Message], write: Write) -> str:
        """The text of the messages. `write` renders them with the caller's arguments. Raises DataError if the reasoning is to be
        kept, and the template writes none."""
        if self._reasoning is Reasoning.TEMPLATE:
            return write(messages)
        earlier = last_question(messages)
        blocks: list[str] = []
        given = [
            self._answer(message, blocks) if index < earlier and message["role"] == "assistant" else message
            for index, message in enumerate(messages)
        ]
        text = write(given)
        for number, block in enumerate(blocks):
            text = text.replace(_mark(number), block, 1)
        return text

    def _answer(self, message: Message, blocks: list[str]) -> Message:
        """An earlier answer without its reasoning; a kept one is added to `blocks`, with its mark in the text."""
        thought, plain = split(message)
        if not thought or (self._reasoning is Reasoning.KEEP and self._keeps(message)):
            return message
        if self._reasoning is Reasoning.KEEP:
            plain["content"] = _mark(len(blocks)) + plain["content"]
            blocks.append(self._block.replace(_INSIDE, thought))
        return plain

    def _keeps(self, message: Message) -> bool:
        """True if the template itself writes the reasoning of earlier answers."""
        return self._keeps_fields if any(message.get(field) for field in FIELDS) else self._keeps_inline

    @cached_property
    def _keeps_fields(self) -> bool:
        return _INSIDE in self._write(_probe(_answered(field=True), later=True))

    @cached_property
    def _keeps_inline(self) -> bool:
        return _INSIDE in self._write(_probe(_answered(field=False), later=True))

    @cached_property
    def _block(self) -> str:
        """What the template writes before a last answer that has reasoning, with _INSIDE in place of the reasoning."""
        earlier = self._write(_probe({"content": _CONTENT}, later=True)).partition(_CONTENT)[0]
        for field in (True, False):
            before = self._write(_probe(_answered(field=field), later=False)).partition(_CONTENT)[0]
            if before.startswith(earlier) and _INSIDE in before:
                return before[len(earlier) :]
        message = "has reasoning in an earlier turn, and the chat template writes none."
        fix = "Set reasoning_history to template, or use a chat template that writes reasoning_content."
        raise DataError(message, fix, field="reasoning_history")


def _mark(number: int) -> str:
    return f"{_MARK}{number}{_MARK}"


def _answered(*, field: bool) -> dict[str, Any]:
    if field:
        return {"content": _CONTENT, FIELDS[0]: _INSIDE}
    return {"content": f"<think>\n{_INSIDE}\n</think>\n\n{_CONTENT}"}


def _probe(answer: dict[str, Any], *, later: bool) -> list[Message]:
    """A question with this answer, and with `later` another question and answer."""
    first = [{"role": "user", "content": _OTHER}, {"role": "assistant", **answer}]
    more = [{"role": "user", "content": _OTHER}, {"role": "assistant", "content": _OTHER}]
    return [*first, *more] if later else first

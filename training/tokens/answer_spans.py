"""The spans of answers in a chat: from the end of the generation prompt to the end token of the turn. No torch."""

from functools import partial

from training.data.example import Message, Row
from training.tokens.changed_messages import another, difference
from training.tokens.frames import Frames, empty_block
from training.tokens.rendered import Span
from training.tokens.template_text import TemplateText
from training.tokens.turn_ends import TurnEnds

_DISTINCT = 8  # characters of a message that hardly occur elsewhere by chance


class AnswerSpans:
    """Finds the spans of answers in frames that were met, else by the beginning of the chat up to an answer, or by changing it."""

    def __init__(self, text: TemplateText, ends: TurnEnds) -> None:
        self._text, self._ends, self._frames = text, ends, Frames()
        self._rewritten_opening = ""  # the generation prompt, once a turn was met that the template rewrites later

    def find(self, messages: list[Message], tools: list[Row] | None, text: str) -> list[Span | None]:
        """The span of each answer in the rendered `text`; None for one that the template omits or rewrites."""
        if quick := self._frames.spans(messages, text):
            return quick
        spans: list[Span | None] = []
        cursor = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            by_change = partial(self._by_change, messages, index, tools, text, cursor)
            span = by_change() if self._rewritten_opening else None
            span = span or self._by_prefix(messages, index, tools, text) or by_change()
            spans.append(span)
            cursor = span[1] if span else cursor
        return spans

    def _by_prefix(self, messages: list[Message], index: int, tools: list[Row] | None, text: str) -> Span | None:
        """The span from the end of the generation prompt to the end of the turn; None if the template rewrites earlier turns."""
        if not index:  # templates render no generation prompt without a message
            return None
        before = self._text(messages[:index], tools, add_generation_prompt=True)
        through = self._text(messages[: index + 1], tools)
        if not (text.startswith(through) and through.startswith(before)):
            return None
        content, body = messages[index]["content"], through[len(before) :]
        begin, end = empty_block(body, content), self._ends.of_turn(body, content)
        if not messages[index].get("tool_calls"):
            prompt = before if self._frames.full else self._text(messages[:index], tools)
            self._frames.add(before.removeprefix(prompt), body[:end], content, begin)
        return len(before) + begin, len(before) + end

    def _by_change(
        self, messages: list[Message], index: int, tools: list[Row] | None, text: str, cursor: int
    ) -> Span | None:
        """The span of an answer from its opening to its end token, found by what changes in `text` if the answer is another one.

        For templates that write a turn in another way if it is not the last one. None if nothing changes.
        """
        message = messages[index]
        other = self._text([*messages[:index], another(message), *messages[index + 1 :]], tools)
        if other == text:
            return None
        first, last = difference(text, other)
        opening, begin = self._opening(messages[:index], tools, text, cursor, first)
        begin = begin if opening else first
        following = messages[index + 1]["content"].strip() if index + 1 < len(messages) else ""
        limit = text.find(following, last) if following else len(text)
        if limit < 0 and (limit := text.find(following, first, last)) >= 0:
            last = first  # the template writes a part of the answer after the next message
        limit = limit if limit >= 0 else len(text)
        end = self._ends.after(text, last, limit, calls=bool(message.get("tool_calls")))
        unlabeled = empty_block(text[begin:end], message["content"])
        if opening and end > last and not message.get("tool_calls"):
            self._frames.add(opening, text[begin:end], message["content"], unlabeled)
        return begin + unlabeled, end

    def _opening(
        self, messages: list[Message], tools: list[Row] | None, text: str, cursor: int, limit: int
    ) -> tuple[str, int]:
        """The generation prompt after `messages`, without a thinking block at its end, and where it ends in `text`, before
        `limit` and after the last message; "" and `cursor` if it does not occur."""
        asked = messages[-1]["content"].strip() if messages else ""
        for known in (True, False):
            opening = self._rewritten_opening if known else self._text.heading(messages, tools)
            place = text.rfind(opening, cursor, limit) if opening else -1
            end = place + len(opening)
            if place >= 0 and (len(asked) < _DISTINCT or text.find(asked, end, limit) < 0):
                self._rewritten_opening = opening
                return opening, end
        return "", cursor

"""The text of a template around answers, cached, so that most rows are rendered once. No torch."""

import re
from dataclasses import dataclass

from training.data.example import Message
from training.tokens.rendered import Span
from training.tokens.template_text import THINK

# An empty thinking block, such as <think>\n\n</think>\n\n, or the rest of one that the generation prompt opens.
EMPTY_BLOCK = re.compile(rf"\s*(?:<({THINK})>\s*</\1>|\[({THINK})\]\s*\[/\2\]|</{THINK}>)\s*")
_MOST = 4


@dataclass(frozen=True)
class _Frame:
    """The text of a template around an answer: the generation prompt (`opening`), then `lead`, the answer, and `closing`. The
    first `unlabeled` characters after the opening carry no loss."""

    opening: str
    lead: str
    closing: str
    unlabeled: int


class Frames:
    """The frames of one template that were met."""

    def __init__(self) -> None:
        self._frames: list[_Frame] = []

    @property
    def full(self) -> bool:
        """True if no further one is kept."""
        return len(self._frames) >= _MOST

    def add(self, opening: str, body: str, content: str, unlabeled: int) -> None:
        """Keeps the frame of an answer, unless another text of its length might be framed in another way."""
        if not opening or len(content) < 2 or body.count(content) != 1:
            return
        lead, closing = body.split(content)
        frame = _Frame(opening, lead, closing, unlabeled)
        same_opening = not self._frames or self._frames[0].opening == opening
        if same_opening and frame not in self._frames and not self.full:
            self._frames = sorted([*self._frames, frame], key=lambda item: (-len(item.lead), -len(item.closing)))

    def spans(self, messages: list[Message], text: str) -> list[Span | None] | None:
        """The spans of the answers if every answer is in a frame, else None."""
        answers = [message for message in messages if message["role"] == "assistant"]
        if not self._frames or any(message.get("tool_calls") for message in answers):
            return None
        opening = self._frames[0].opening
        if text.count(opening) != len(answers):  # a message contains the template's text
            return None
        spans: list[Span | None] = []
        cursor = 0
        for message in answers:
            start = text.index(opening, cursor) + len(opening)
            framed = ((frame, frame.lead + message["content"] + frame.closing) for frame in self._frames)
            match = next(((frame, body) for frame, body in framed if text.startswith(body, start)), None)
            if match is None:
                return None
            frame, body = match
            cursor = start + len(body)
            spans.append((start + frame.unlabeled, cursor))
        return spans


def empty_block(body: str, content: str) -> int:
    """The length of an empty thinking block that the template, not the message, puts at the start of a turn."""
    block = EMPTY_BLOCK.match(body)
    if block is None or EMPTY_BLOCK.match(content):
        return 0
    begin = body.find(content) if content.strip() else -1  # white space at its start is the answer's own
    return min(block.end(), begin) if begin >= 0 else block.end()

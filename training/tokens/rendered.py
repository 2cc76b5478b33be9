"""A rendered row: its text, and the spans of its answers that carry loss. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.data.example import Message

Span = tuple[int, int]
Pieces = tuple[Span, ...]
"""The parts of an answer between which a template writes what the model does not generate, such as the result of a call."""


@dataclass(frozen=True)
class Rendered:
    """The text of a row and the spans [start, end) of its answers, in characters, with the loss weight of each (default: 1).

    `templated` is True if a chat template wrote it, including special tokens and the end token of the last turn; else the end
    token, which is added if it `ends` with an answer, has the weight `end_weight`. `answers` has the span of every assistant
    message, with or without loss; None for one that the template omits. `unended` counts the answers with loss after which the
    template writes no end token.
    """

    text: str
    spans: list[Span]
    templated: bool
    weights: tuple[float, ...] = ()
    end_weight: float = 1.0
    answers: tuple[Pieces | None, ...] = ()
    unended: int = 0
    ends: bool = True

    @property
    def last_answer(self) -> int:
        """The character at which the last answer begins."""
        return self.answers[-1][0][0] if self.answers and self.answers[-1] else self.spans[-1][0]


def weighted(text: str, answers: Sequence[Pieces | None], weights: list[float], *, templated: bool) -> Rendered:
    """The row with the pieces of the answers whose weight is above 0."""
    found = zip(answers, weights, strict=True)
    kept = [(span, weight) for pieces, weight in found for span in pieces or () if weight]
    several = tuple(weight for _, weight in kept) if any(weight != 1 for _, weight in kept) else ()
    return Rendered(text, [span for span, _ in kept], templated, several, weights[-1] if weights else 0.0)


# For a model without a chat template: headings, and a blank line after each message.
_PLAIN_HEADINGS = {"system": "", "user": "### Instruction:\n", "assistant": "### Response:\n", "tool": "### Tool:\n"}


def plainly(messages: list[Message]) -> tuple[str, list[Pieces | None]]:
    """The text of a chat for a model without a chat template, and each answer."""
    text = ""
    answers: list[Pieces | None] = []
    for message in messages:
        text += _PLAIN_HEADINGS[message["role"]]
        if message["role"] == "assistant":
            answers.append(((len(text), len(text) + len(message["content"])),))
        text += message["content"] + "\n\n"
    return text.removesuffix("\n\n") if messages and messages[-1]["role"] == "assistant" else text, answers

"""What of a row is missing in its rendering, and which of its answers carry no loss. No torch.

Two invariants hold for every row: each text of its messages, calls and tools occurs in what is rendered, and each answer that is to
carry loss does, up to its end token. What breaks them is a `Gap`.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from training.chat.reasoning import FIELDS, last_question, split
from training.chat.rendering_settings import ChatSettings, answer_weights
from training.data.example import Example, Message, Row
from training.tokens.rendered import Pieces, Rendered

_WORDS = 3  # of a tool's result, which a template may write as JSON
_SHOWN = 40  # characters


class Gap(StrEnum):
    """What is missing."""

    SYSTEM = "system message"
    USER = "user message"
    TOOL = "tool result"
    ANSWER = "answer"
    CALLS = "tool calls"
    TOOLS = "tools"
    REASONING = "reasoning"
    EARLIER_REASONING = "reasoning of an earlier answer"
    NO_LOSS = "loss of an answer"
    NO_END = "end token of an answer"
    MOVED = "text of an answer before its calls"


_BY_ROLE = {"system": Gap.SYSTEM, "user": Gap.USER, "tool": Gap.TOOL}


@dataclass(frozen=True)
class Missing:
    """A gap of a row: its place in the row, and the beginning of the text that is missing."""

    gap: Gap
    place: str
    text: str = ""


def missing(
    example: Example, rendered: Rendered, settings: ChatSettings, trained_turns: int | None = None
) -> list[Missing]:
    """The gaps of a row that was rendered as a whole; none for a row without messages, whose text is its rendering.

    With `trained_turns` only answers among so many of the last messages are to carry loss.
    """
    if example.messages is None:
        return []
    found = list(_messages(example, rendered, settings, trained_turns))
    if example.tools and (name := _absent_tool(example.tools, rendered.text)):
        found.append(Missing(Gap.TOOLS, "tools", name))
    if rendered.unended and not any(one.gap is Gap.MOVED for one in found):  # what is moved has no end of its own
        found.append(Missing(Gap.NO_END, ""))
    return found


def _messages(
    example: Example, rendered: Rendered, settings: ChatSettings, trained_turns: int | None
) -> Iterator[Missing]:
    messages, text = example.messages or [], rendered.text
    first_trained = len(messages) - trained_turns if trained_turns else 0
    answers = zip(rendered.answers, answer_weights(messages, settings, example.weight), strict=True)
    earlier = cursor = 0
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if message["role"] == "assistant":
            pieces, weight = next(answers)
            weight = weight if index >= first_trained else 0.0
            earlier = earlier or last_question(messages)
            yield from _answer(message, place, text, pieces if weight else None, weight, earlier=index < earlier)
            if rendered.unended and pieces and weight and _is_behind_results(messages, index, text, pieces[0][0]):
                yield Missing(Gap.MOVED, place, shortened(message["content"].strip()))
            cursor = pieces[0][1] if pieces else cursor
            continue
        content = message["content"].strip()
        start = text.find(content, cursor)
        if start >= 0:
            cursor = start + len(content)
        elif content not in text and not (message["role"] == "tool" and _has_words(content, text)):
            yield Missing(_BY_ROLE[message["role"]], place, shortened(content))


def _answer(
    message: Message, place: str, text: str, pieces: Pieces | None, weight: float, *, earlier: bool
) -> Iterator[Missing]:
    """The gaps of an answer, which is looked for in its pieces if it carries loss, else in the whole text."""
    reasons = "<" in message["content"] or any(message.get(field) for field in FIELDS)
    thought, plain = split(message) if reasons else ("", message)
    content, calls = plain["content"].strip(), message.get("tool_calls")
    own = "\0".join(text[first:end] for first, end in pieces) if pieces else text
    if content and content not in own:
        yield Missing(Gap.NO_LOSS if pieces and content in text else Gap.ANSWER, place, shortened(content))
    elif weight and not pieces and content:
        yield Missing(Gap.NO_LOSS, place, shortened(content))
    if calls and (lost := next((part for part in _texts(calls) if not _occurs(part, own)), None)):
        written = pieces and all(_occurs(part, text) for part in _texts(calls))
        yield Missing(Gap.NO_LOSS if written else Gap.CALLS, f"{place}.tool_calls", shortened(lost))
    elif calls and weight and not pieces:
        yield Missing(Gap.NO_LOSS, f"{place}.tool_calls")
    if not (thought := thought.strip()):
        return
    if thought not in text and (weight or not earlier):
        yield Missing(Gap.EARLIER_REASONING if earlier else Gap.REASONING, place, shortened(thought))
    elif weight and thought in text and thought not in own and not earlier:
        yield Missing(Gap.NO_LOSS, place, shortened(thought))


def _is_behind_results(messages: list[Message], index: int, text: str, begin: int) -> bool:
    """True if the text of an answer with calls, which begins at `begin`, is written behind the result of its first call."""
    content = split(messages[index])[1]["content"].strip() if messages[index].get("tool_calls") else ""
    result = messages[index + 1]["content"].strip() if index + 1 < len(messages) else ""
    if not content or not result or messages[index + 1]["role"] != "tool":
        return False
    return 0 <= text.find(result, begin) < text.find(content, begin)


def _absent_tool(tools: list[Row], text: str) -> str | None:
    """The first tool whose name or description is not in the text."""
    for tool in tools:
        function = tool["function"] if isinstance(tool.get("function"), dict) else tool
        for part in (function.get("name"), function.get("description")):
            if isinstance(part, str) and not _occurs(part.strip(), text):
                return shortened(part)
    return None


def _texts(calls: Any) -> Iterator[str]:
    """The names and arguments of calls, without their ids and types."""
    for call in calls:
        function = call["function"] if isinstance(call.get("function"), dict) else call
        yield from _leaves({key: value for key, value in function.items() if key not in ("id", "type")})


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.strip()
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("name", "function", "arguments", "parameters"):
                yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)


def _occurs(part: str, text: str) -> bool:
    """True if a text is in another one, as it is or as a template writes it in JSON."""
    return part in text or any(json.dumps(part, ensure_ascii=ascii_only)[1:-1] in text for ascii_only in (False, True))


def _has_words(content: str, text: str) -> bool:
    """True if words of a tool's result are in the text: a template may write it as JSON, or a part of JSON without its keys."""
    words = [word for word in content.replace('"', " ").split() if len(word) > 1]
    return any(word.strip("{}[],:") in text for word in words[:_WORDS] + words[-_WORDS:])


def shortened(text: str) -> str:
    """The text for messages, in the middle shortened."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"


@dataclass(frozen=True)
class GapCount:
    """How many rows have a gap, the first of them (from 1), and what is missing there."""

    rows: int
    first: int
    place: str
    text: str


class GapCounts:
    """Counts rows by gap."""

    def __init__(self) -> None:
        self.by_gap: dict[Gap, GapCount] = {}

    def add(self, number: int, gaps: list[Missing]) -> None:
        """Counts the gaps of the row with this number, from 1."""
        for gap in {one.gap: one for one in reversed(gaps)}.values():
            first = self.by_gap.get(gap.gap) or GapCount(0, number, gap.place, gap.text)
            self.by_gap[gap.gap] = replace(first, rows=first.rows + 1)

    def as_json(self) -> dict[str, dict[str, Any]]:
        return {gap.value: asdict(count) for gap, count in self.by_gap.items()}


def gap_counts(values: dict[str, dict[str, Any]]) -> dict[Gap, GapCount]:
    """The counts that `GapCounts.as_json` wrote."""
    return {Gap(gap): GapCount(**count) for gap, count in values.items()}

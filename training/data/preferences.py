"""Reads preference pairs in the common formats: prompt, chosen answer and rejected answer."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training.data.conversations import from_json, is_answer, turns
from training.data.example import EmptyRow, Message, Row, filled, kind_of, text
from training.errors import DataError

_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant|System):[ \n]?")
_SPEAKERS = {"Human": "user", "Assistant": "assistant", "System": "system"}
_NO_PROMPT_FIX = "Name the column with the prompt `prompt`, or set a column mapping."


@dataclass(frozen=True)
class Pair:
    """A pair of texts (`beginning` is the prompt), or of conversations (`beginning` are the turns before the answers)."""

    beginning: str | list[Message]
    chosen: str | list[Message]
    rejected: str | list[Message]

    def messages(self) -> tuple[list[Message], list[Message]]:
        """The turns before the answer, and the turns of the chosen answer."""
        before = self.beginning if isinstance(self.beginning, list) else [{"role": "user", "content": self.beginning}]
        return before, self.chosen if isinstance(self.chosen, list) else _assistant(self.chosen)


def read_pair(row: Row) -> Pair:
    """The pair in a row's columns chosen and rejected. The prompt has its own column, or is their common beginning.

    Raises:
        EmptyRow: an answer is empty.
        DataError: no prompt is found, or a value is of the wrong type.
    """
    if "chosen" not in row and is_answer_pair(row.get("output")):
        row = row | dict(zip(("chosen", "rejected"), row["output"], strict=True))
    if _is_conversation(row.get("chosen")):
        return _conversation_pair(row)
    chosen, rejected = filled(row, "chosen"), filled(row, "rejected")
    before = _before(row)
    if isinstance(before, list):
        return Pair(before, _assistant(chosen), _assistant(rejected))
    if before:
        return Pair(before, chosen, rejected)
    if _TURN.match(chosen) and _TURN.match(rejected):
        return _split_turns(_dialogue(chosen), _dialogue(rejected))
    return _split_texts(chosen, rejected)


def _conversation_pair(row: Row) -> Pair:
    """Answers as messages: either the answer only, or the complete conversation."""
    chosen, rejected = turns(row, "chosen"), turns(row, "rejected")
    before = _before(row)
    if before and chosen[:1] and chosen[0]["role"] == "assistant":
        return _checked(Pair(Pair(before, chosen, rejected).messages()[0], chosen, rejected))
    return _split_turns(chosen, rejected)


def _before(row: Row) -> str | list[Message]:
    """The prompt from its own column; empty if there is none."""
    for column in ("prompt", "messages", "conversations", "conversation"):
        if column in row:
            return turns(row, column) if _is_conversation(row[column]) else text(row, column)
    return ""


def _split_turns(chosen: list[Message], rejected: list[Message]) -> Pair:
    # Both answers may be equal; then the last turn of each is the answer.
    same = min(_common_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    if same < 1:
        raise DataError("and rejected do not start with the same turns.", _NO_PROMPT_FIX, field="chosen")
    return _checked(Pair(chosen[:same], chosen[same:], rejected[same:]))


def _checked(pair: Pair) -> Pair:
    for column, answer in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if not any(is_answer(message) for message in answer if isinstance(message, dict)):
            raise EmptyRow("has no answer from the assistant.", "Fill it in, or delete the row.", field=column)
    return pair


def _split_texts(chosen: str, rejected: str) -> Pair:
    """Splits texts after their common beginning, the prompt, which ends at a space or line break."""
    common = chosen[: _common_length(chosen, rejected)]
    end = max((match.end() for match in re.finditer(r"\s+", common)), default=0)
    if not common[:end].strip():
        raise DataError(
            "and rejected have no common beginning, and there is no prompt column.", _NO_PROMPT_FIX, field="chosen"
        )
    if not chosen[end:].strip():
        raise EmptyRow("contains only the common beginning.", "Fill it in, or delete the row.", field="chosen")
    return Pair(common[:end], chosen[end:], rejected[end:])


def _dialogue(dialogue: str) -> list[Message]:
    """The turns of a text with `Human:` and `Assistant:`."""
    parts = _TURN.split(dialogue)[1:]
    return [
        {"role": _SPEAKERS[speaker], "content": content.strip()}
        for speaker, content in zip(parts[::2], parts[1::2], strict=True)
    ]


def _common_length(first: Iterable[Any], second: Iterable[Any]) -> int:
    """The length of the common beginning."""
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


def _assistant(answer: str) -> list[Message]:
    return [{"role": "assistant", "content": answer}]


def _is_conversation(value: Any) -> bool:
    value = from_json(value)
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(turn, dict) for turn in value))


def is_answer_pair(value: Any) -> bool:
    """True for a chosen and a rejected answer in one list, an older form of LLaMA-Factory's."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(answer, str) for answer in value)


def label(value: Any) -> bool:
    """The label of an unpaired answer: true or 1 for good, false or 0 for bad, also as text.

    Raises:
        DataError: it is none of these.
    """
    meaning = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    key = value.strip().lower() if isinstance(value, str) else value
    if isinstance(key, (str, int)) and key in meaning:
        return meaning[key]
    raise DataError(
        f"is {kind_of(value)}, not a label.", "Write true for a good answer, false for a bad one.", field="label"
    )

"""Preference pairs in the forms that are common: what both answers begin with, the chosen answer and the rejected one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training.example import EmptyRow, Message, Row, filled, kind_of, text
from training.failure import DataError
from training.messages import answers, from_json, turns

_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant|System):[ \n]?")
_SPEAKERS = {"Human": "user", "Assistant": "assistant", "System": "system"}
_NO_PROMPT_FIX = "Name the column of the prompt `prompt`, or say which one it is with a mapping."


@dataclass(frozen=True)
class Pair:
    """A pair of texts (`beginning` is the prompt), or of conversations (`beginning` is what comes before the answers)."""

    beginning: str | list[Message]
    chosen: str | list[Message]
    rejected: str | list[Message]

    def messages(self) -> tuple[list[Message], list[Message]]:
        """The turns before the answer, and the chosen answer's."""
        before = self.beginning if isinstance(self.beginning, list) else [{"role": "user", "content": self.beginning}]
        return before, self.chosen if isinstance(self.chosen, list) else _said(self.chosen)


def read_pair(row: Row) -> Pair:
    """The pair in a row's columns chosen and rejected, whose prompt is explicit or their common beginning.

    Raises:
        EmptyRow: an answer is empty.
        DataError: no prompt is found, or a value is of the wrong type.
    """
    if _is_spoken(row.get("chosen")):
        return _spoken_pair(row)
    chosen, rejected = filled(row, "chosen"), filled(row, "rejected")
    before = _before(row)
    if isinstance(before, list):
        return Pair(before, _said(chosen), _said(rejected))
    if before:
        return Pair(before, chosen, rejected)
    if _TURN.match(chosen) and _TURN.match(rejected):
        return _parted(_dialogue(chosen), _dialogue(rejected))
    return _texts_parted(chosen, rejected)


def _spoken_pair(row: Row) -> Pair:
    """Answers given as messages: the answer alone, or the whole conversation each time."""
    chosen, rejected = turns(row, "chosen"), turns(row, "rejected")
    before = _before(row)
    if before and chosen[:1] and chosen[0]["role"] == "assistant":
        return _checked(Pair(Pair(before, chosen, rejected).messages()[0], chosen, rejected))
    return _parted(chosen, rejected)


def _before(row: Row) -> str | list[Message]:
    """What an explicit column says comes before the answers; empty where there is none."""
    for column in ("prompt", "messages", "conversations"):
        if column in row:
            return turns(row, column) if _is_spoken(row[column]) else text(row, column)
    if "instruction" in row:
        more = text(row, "input") if "input" in row else ""
        return "\n\n".join(part for part in (text(row, "instruction"), more) if part)
    return ""


def _parted(chosen: list[Message], rejected: list[Message]) -> Pair:
    same = _shared(chosen, rejected)
    # The answers themselves may be equal; then the last turn of each is the answer.
    same = min(same, len(chosen) - 1, len(rejected) - 1)
    if same < 1:
        raise DataError("and rejected do not begin with the same turns.", _NO_PROMPT_FIX, field="chosen")
    return _checked(Pair(chosen[:same], chosen[same:], rejected[same:]))


def _checked(pair: Pair) -> Pair:
    for column, said in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if not any(answers(message) for message in said if isinstance(message, dict)):
            raise EmptyRow("has no answer of the assistant.", "Fill it in, or delete the row.", field=column)
    return pair


def _texts_parted(chosen: str, rejected: str) -> Pair:
    """Texts whose common beginning is the prompt: up to the last space or line break in it, so that no word is cut."""
    common = chosen[: _shared(chosen, rejected)]
    end = max((found.end() for found in re.finditer(r"\s+", common)), default=0)
    if not common[:end].strip():
        raise DataError(
            "and rejected have no common beginning, and there is no prompt.", _NO_PROMPT_FIX, field="chosen"
        )
    if not chosen[end:].strip():
        raise EmptyRow("holds no more than the common beginning.", "Fill it in, or delete the row.", field="chosen")
    return Pair(common[:end], chosen[end:], rejected[end:])


def _dialogue(written: str) -> list[Message]:
    """Turns written as text after `Human:` and `Assistant:`."""
    parts = _TURN.split(written)[1:]
    return [
        {"role": _SPEAKERS[speaker], "content": said.strip()}
        for speaker, said in zip(parts[::2], parts[1::2], strict=True)
    ]


def _shared(one: Iterable[Any], other: Iterable[Any]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _said(answer: str) -> list[Message]:
    return [{"role": "assistant", "content": answer}]


def _is_spoken(value: Any) -> bool:
    value = from_json(value)
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(turn, dict) for turn in value))


def label(value: Any) -> bool:
    """Whether an unpaired answer is wanted: true, 1 or the word.

    Raises:
        DataError: it is none of these.
    """
    meaning = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    given = value.strip().lower() if isinstance(value, str) else value
    if isinstance(given, (str, int)) and given in meaning:
        return meaning[given]
    raise DataError(
        f"is {kind_of(value)}, not a label.", "Give true for a wanted answer, false for another.", field="label"
    )

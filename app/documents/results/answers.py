"""The answers to held-out rows before and after training, sorted by how they changed, with the differing words."""

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from training import json_files
from training.run_folder.paths import ANSWERS_FILE
from worker.settings import get_settings

_WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")  # with the space before it, so that a changed phrase is marked as one
_MOST_COMPARISONS = 4_000_000  # of words; a diff of longer answers takes seconds

Part = tuple[bool, str]
"""A part of a text, and whether it differs from the other text."""


class Change(StrEnum):
    """How an answer changed, in the order of the table."""

    RIGHT = "became right"
    WRONG = "became wrong"
    CHANGED = "changed"
    SAME = "unchanged"


@dataclass(frozen=True)
class Answer:
    """A held-out row: its number in the file (from 1), the prompt, the expected text, and both answers with their token F1."""

    row: int
    prompt: str
    expected: str
    before: str
    after: str
    change: Change
    gain: float = 0.0


@dataclass(frozen=True)
class Answers:
    """The answers in a file, sorted by change, the largest difference of token F1 first: where each of them stands, since a file
    may have hundreds of thousands. A slice reads its answers."""

    path: Path = Path()
    places: Sequence[int] = ()
    counts: Mapping[Change, int] = field(default_factory=lambda: dict.fromkeys(Change, 0))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, part: slice) -> list[Answer]:
        return [_answer(record) for record in json_files.lines_at(self.path, self.places[part])]

    def of(self, wanted: str) -> "Answers":
        """Those that changed in this way; all if it is none."""
        first = 0
        for change, count in self.counts.items():
            if change == wanted:
                return Answers(self.path, self.places[first : first + count], {change: count})
            first += count
        return self


def answers_of(run_id: str) -> Answers:
    """The answers of a run on this machine; empty if there are none."""
    path = get_settings().runs_dir / run_id / ANSWERS_FILE
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # an archive may hold anything
        return Answers()


def differences(before: str, after: str) -> tuple[list[Part], list[Part]]:
    """Both texts in parts: words that are only in one of them, and those in both."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    if len(old) * len(new) > _MOST_COMPARISONS:
        return [(before != after, before)], [(before != after, after)]
    left: list[Part] = []
    right: list[Part] = []
    for kind, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        left.append((kind != "equal", "".join(old[start:end])))
        right.append((kind != "equal", "".join(new[new_start:new_end])))
    return [part for part in left if part[1]], [part for part in right if part[1]]


@lru_cache(maxsize=8)
def _read(path: Path, _modified: int) -> Answers:
    places, kinds, gains, rows, order = array("q"), array("b"), array("d"), array("q"), list(Change)
    for place, record in json_files.placed_lines(path):
        answer = _answer(record)
        places.append(place)
        kinds.append(order.index(answer.change))
        gains.append(-abs(answer.gain))
        rows.append(answer.row)
    found = np.lexsort((rows, gains, kinds)).tolist()
    counts = {change: kinds.count(number) for number, change in enumerate(order)}
    return Answers(path, array("q", (places[number] for number in found)), counts)


def _answer(record: dict[str, Any]) -> Answer:
    gain = float(record.get("f1_after", 0.0)) - float(record.get("f1_before", 0.0))
    prompt, expected, before, after = (str(record[name]) for name in ("prompt", "expected", "before", "after"))
    return Answer(int(record["row"]) + 1, prompt, expected, before, after, _change(record), gain)


def _change(record: dict[str, Any]) -> Change:
    if record["match_before"] != record["match_after"]:
        return Change.RIGHT if record["match_after"] else Change.WRONG
    return Change.SAME if record["before"] == record["after"] else Change.CHANGED

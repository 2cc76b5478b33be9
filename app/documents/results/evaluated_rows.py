"""The answers of evaluations, row by row: a file may have hundreds of thousands, so only those that are shown are read."""

import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from training import json_files
from training.scoring.request import RECORDS_FILE
from worker.evaluations.submit import folder_of
from worker.store.tables import Evaluation

NOT_READABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading answers raises: an archive may hold anything in their place."""
MOST_SCORES = 256
"""Names of scores that are shown; a suite has some dozens."""


@dataclass(frozen=True)
class Row:
    """A row of an evaluation's table; `other` is the answer of the evaluation that it is compared with, `difference` of scores."""

    row: int
    prompt: str
    expected: str
    answer: str
    scores: dict[str, float | None]
    reply: str = ""
    other: str | None = None
    difference: float | None = None


@dataclass(frozen=True)
class AnsweredRows:
    """The rows of an evaluation in some order: where their records are, beside those of another one. A slice reads them, fewer of
    them if they are long."""

    item: Evaluation
    against: Evaluation | None
    metric: str
    pairs: Sequence[tuple[int, int | None]] = ()
    scores: Sequence[str] = ()
    """The names of all scores."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, part: slice) -> list[Row]:
        pairs = self.pairs[part]
        mine = json_files.lines_at(file_of(self.item), [place for place, _ in pairs])
        places = [other for _, other in pairs if other is not None]
        theirs = json_files.lines_at(file_of(self.against), places) if self.against else iter(())
        return list(self._beside(pairs, mine, theirs))

    def _beside(
        self, pairs: Sequence[tuple[int, int | None]], mine: Iterator[Any], theirs: Iterator[Any]
    ) -> Iterator[Row]:
        for (_, other), record in zip(pairs, mine, strict=False):
            beside = None if other is None else next(theirs, None)
            if other is not None and beside is None:
                return
            yield _row(record, beside, self.metric)


def rows(item: Evaluation, against: Evaluation | None = None, metric: str = "", order: str = "row") -> AnsweredRows:
    """The rows in the order of the file, or sorted: "lowest" or "highest" score of the metric, or "worse" or "better" by the
    difference first. With `against`, each has the other answer and the difference."""
    mine = _placed(item, metric)
    other = _placed(against, metric) if against else None
    theirs = dict(zip(other.rows, range(len(other.rows)), strict=True)) if other else {}
    found = [theirs.get(row) for row in mine.rows]
    values = np.array(mine.values)
    if order in ("worse", "better"):
        values = values - np.array([math.nan if at is None or other is None else other.values[at] for at in found])
    signs = {"lowest": 1, "highest": -1, "worse": 1, "better": -1}
    sequence = np.argsort(signs[order] * values, kind="stable") if order in signs else range(len(found))
    pairs = [
        (mine.places[at], None if (there := found[at]) is None or other is None else other.places[there])
        for at in sequence
    ]
    return AnsweredRows(item, against, metric, pairs, mine.scores)


@dataclass(frozen=True)
class _Placed:
    """Where the records of a file begin, the numbers of their rows, their scores by a metric (NaN: none), and the names of all."""

    places: Sequence[int] = ()
    rows: Sequence[int] = ()
    values: Sequence[float] = ()
    scores: Sequence[str] = ()


def _placed(item: Evaluation, metric: str) -> _Placed:
    path = file_of(item)
    try:
        return _read_places(path, path.stat().st_mtime_ns, metric)
    except NOT_READABLE:
        return _Placed()


@lru_cache(maxsize=16)
def _read_places(path: Path, _modified: int, metric: str) -> _Placed:
    places, numbers, values, scores = array("q"), array("q"), array("d"), dict[str, None]()
    for place, record in json_files.placed_lines(path):
        value = record["scores"].get(metric)
        places.append(place)
        numbers.append(int(record["row"]))
        values.append(math.nan if value is None else value)
        if len(scores) < MOST_SCORES:
            scores |= dict.fromkeys(islice(record["scores"], MOST_SCORES))
    return _Placed(places, numbers, values, tuple(scores))


def _row(record: dict[str, Any], other: dict[str, Any] | None, metric: str) -> Row:
    mine, theirs = (one["scores"].get(metric) if one else None for one in (record, other))
    difference = mine - theirs if mine is not None and theirs is not None else None
    prompt, expected, mine_text = (str(record.get(name, "")) for name in ("prompt", "expected", "answer"))
    answer = str(other.get("answer", "")) if other else None
    reply, number = str(record.get("judge", "")), int(record["row"]) + 1
    scores = {name: value if isinstance(value, (int, float)) else None for name, value in record["scores"].items()}
    return Row(number, prompt, expected, mine_text, scores, reply, answer, difference)


def records(item: Evaluation) -> Iterator[dict[str, Any]]:
    """What the evaluation has stored of each row, in the order of the file, until a line cannot be read."""
    with suppress(OSError, ValueError):
        yield from json_files.lines(file_of(item))


def file_of(item: Evaluation) -> Path:
    """The file of the answers, which is missing on other machines and before there are answers."""
    return folder_of(item) / RECORDS_FILE

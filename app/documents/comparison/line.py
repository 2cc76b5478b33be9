"""One result, setting or circumstance of several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.units import NONE


@dataclass(frozen=True)
class Line:
    """Values in the order of the runs, None where a run has none; `texts` are the same in words.

    `best` are the positions of the best value, empty where better has no clear direction. `notes` explain values, "" for most.
    `group` and `short` are a heading and the label below it; `minor` lines are not on pages.
    """

    key: str
    label: str
    values: list[Any]
    texts: list[str]
    notes: list[str]
    best: frozenset[int] = frozenset()
    group: str = ""
    short: str = ""
    minor: bool = False

    @property
    def known(self) -> bool:
        """True if at least one run has a value."""
        return any(value is not None for value in self.values)

    @property
    def differs(self) -> bool:
        """True if two runs that have a value have different ones."""
        present = [value for value, text in zip(self.values, self.texts, strict=True) if text != NONE]
        return any(value != present[0] for value in present)


def texts(values: Sequence[Any], written: Any) -> list[str]:
    """Each value as text; "-" for None."""
    return [NONE if value is None else written(value) for value in values]


def best_of(values: Sequence[Any], better: str) -> frozenset[int]:
    """The positions of the lowest or highest value; empty if fewer than two runs have one, or all have the same."""
    present = [value for value in values if value is not None]
    if better not in ("lower", "higher") or len(set(present)) < 2:
        return frozenset()
    best = min(present) if better == "lower" else max(present)
    return frozenset(place for place, value in enumerate(values) if value == best)

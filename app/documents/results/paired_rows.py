"""The scores of a run's answers by row, and what two runs' scores of the same rows show."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from training.scoring.paired import Paired, compare

_MINOR = ("rouge1", "rouge2")

Key = tuple[str, int, str]
"""A row: the data that it is from, its number there, and the expected text."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The scores of answered rows by name. Two of them are never equal, so that comparisons are cached by object."""

    rows: dict[Key, dict[str, float]]

    def __bool__(self) -> bool:
        return bool(self.rows)


NOTHING = ScoredRows({})


@lru_cache(maxsize=2048)
def paired(first: ScoredRows, second: ScoredRows) -> dict[str, Paired]:
    """What the scores of the rows that both have show, by the name of the score; empty without such rows."""
    common = [key for key in first.rows if key in second.rows]
    if not common:
        return {}
    sides = first.rows, second.rows
    names = [name for name in first.rows[common[0]] if all(name in rows[key] for rows in sides for key in common)]
    return {
        name: compare([first.rows[key][name] for key in common], [second.rows[key][name] for key in common])
        for name in names
        if name not in _MINOR
    }


def paired_any(first: Sequence[ScoredRows], second: Sequence[ScoredRows]) -> dict[str, Paired]:
    """What the first pair of sets with common rows shows; empty without one."""
    pairs = (paired(one, other) for one in first for other in second)
    return next((found for found in pairs if found), {})

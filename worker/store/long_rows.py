"""Parts of long lists: as many rows as one answer may keep in memory."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

R = TypeVar("R")

MOST_CHARACTERS = 8 * 2**20
"""Characters of a part: 100,000 usual lines of a log."""
AT_ONCE = {"yield_per": 500}
"""The option of a statement whose rows are read one after another."""


def within(rows: Iterable[R], *texts: str) -> Iterator[R]:
    """The rows until these columns have MOST_CHARACTERS together, at least one."""
    length = 0
    for row in rows:
        length += sum(len(getattr(row, name)) for name in texts)
        yield row
        if length >= MOST_CHARACTERS:
            return

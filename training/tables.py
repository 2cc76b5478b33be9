"""Tables that have rows for some members of an enum only, which say so where they stand.

All other tables have a row for each member, and none is looked up with a default; tests/test_choices.py reads the code for that.
"""

from collections.abc import Mapping
from typing import TypeVar

Key = TypeVar("Key")
Row = TypeVar("Row")


class Otherwise(dict[Key, Row]):
    """A table in which all members without a row of their own have the same one."""

    def __init__(self, row: Row, rows: Mapping[Key, Row]) -> None:
        super().__init__(rows)
        self._row = row

    def __missing__(self, key: Key) -> Row:
        return self._row


def only(rows: dict[Key, Row]) -> dict[Key, Row]:
    """The table as it is. It declares that the other members are never looked up; to look one up is a fault of the program."""
    return rows

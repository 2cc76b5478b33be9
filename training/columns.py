"""What a data set's columns hold, and where rows differ: a column that some lack, or that changes its type."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from training.example import Row, kind_of
from training.failure import DataError

MOST_COLUMNS = 500
_MOST_SIGNATURES = 2000
_EXACT = 2**53  # above it many programs round whole numbers
_NUMBERS = {int: float}  # one kind of value to a reader
_WORDS = {str: "text", float: "a number", bool: "true or false", list: "a list", dict: "an object"}


class Columns:
    """The columns of all rows seen. Rows with the same columns and types are looked at once."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._rows = 0
        self._seen: dict[tuple[Any, ...], list[Any]] = {}
        self._large: dict[str, list[int]] = {}

    def add(self, row: Row) -> None:
        self._rows += 1
        signature = (*row, *map(type, row.values()))
        seen = self._seen.get(signature)
        if seen is None:
            seen = self._new(signature, row)
        seen[0] += 1
        for name in seen[2]:
            if not -_EXACT <= row[name] <= _EXACT:
                large = self._large.setdefault(name, [self._rows, 0])
                large[1] += 1

    def _new(self, signature: tuple[Any, ...], row: Row) -> list[Any]:
        if len(self._seen) >= _MOST_SIGNATURES:
            signature = ()
        for name in row:
            if len(self.names) < MOST_COLUMNS:
                self.names.setdefault(name)
        whole = [name for name, value in row.items() if type(value) is int] if signature else []
        return self._seen.setdefault(signature, [0, self._rows, whole])

    def remarks(self, *, gaps: bool = True) -> Iterator[tuple[DataError, int, int]]:
        """What is odd, with the first row and the number of rows that have it; `gaps` are columns that some rows lack."""
        if len(self.names) >= MOST_COLUMNS:
            message = f"has {MOST_COLUMNS} columns or more."
            yield DataError(message, "Keep the columns that are trained on."), 1, self._rows
            return
        kinds = self._kinds()
        for name in self.names:
            yield from self._gap(name, kinds[name]) if gaps else ()
            yield from self._differing(name, kinds[name])
        for name, (line, rows) in self._large.items():
            message = f"holds a whole number above {_EXACT:,}, which many programs round."
            yield DataError(message, "Write it as text if it is a name.", field=name), line, rows

    def _kinds(self) -> dict[str, dict[type, list[int]]]:
        """For each column its kinds of value: the first row and the number of rows."""
        found: dict[str, dict[type, list[int]]] = defaultdict(dict)
        for signature, (rows, line, _) in self._seen.items():
            half = len(signature) // 2
            for name, kind in zip(signature[:half], signature[half:], strict=True):
                entry = found[name].setdefault(_NUMBERS.get(kind, kind), [line, 0])
                entry[0], entry[1] = min(entry[0], line), entry[1] + rows
        return found

    def _gap(self, name: str, kinds: dict[type, list[int]]) -> Iterator[tuple[DataError, int, int]]:
        missing = self._rows - sum(rows for _, rows in kinds.values())
        if missing > 0 and () not in self._seen:
            message = f"is a column that {missing:,} of {self._rows:,} rows do not have."
            yield DataError(message, "Give every row the same columns.", field=name), self._first_without(name), missing

    def _differing(self, name: str, kinds: dict[type, list[int]]) -> Iterator[tuple[DataError, int, int]]:
        filled = {kind: place for kind, place in kinds.items() if kind is not type(None)}
        if not filled:
            yield DataError("is null in every row.", "Fill the column in, or drop it.", field=name), 1, self._rows
        if len(filled) > 1:
            counts = Counter({kind: rows for kind, (_, rows) in filled.items()}).most_common()
            said = " and ".join(f"{_word(kind)} in {rows:,}" for kind, rows in counts)
            rare = counts[-1][0]
            line, rows = filled[rare]
            yield DataError(f"is {said} rows.", "Write one type of value.", field=name), line, rows

    def _first_without(self, name: str) -> int:
        lines: list[int] = [
            seen[1] for signature, seen in self._seen.items() if name not in signature[: len(signature) // 2]
        ]
        return min(lines)


def _word(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)


def shorten(value: Any, depth: int = 8, characters: int = 400, entries: int = 5) -> Any:
    """A value as a sample shows it: long texts cut, lists and objects no longer and no deeper than a person reads."""
    if isinstance(value, str):
        return value if len(value) <= characters else value[:characters] + "…"
    if isinstance(value, (list, dict)) and not depth:
        return f"({kind_of(value)})"
    if isinstance(value, dict):
        return {str(key)[:characters]: shorten(item, depth - 1) for key, item in list(value.items())[:MOST_COLUMNS]}
    if isinstance(value, list):
        return [shorten(item, depth - 1) for item in value[:entries]]
    return value if isinstance(value, (int, float, bool, type(None))) else shorten(str(value))

"""The problems of a file by kind, each with its first row and the number of rows."""

import re
from collections import Counter
from dataclasses import dataclass, replace

from training.errors import DataError

ERROR, WARNING = "error", "warning"
KINDS = 20
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass(frozen=True)
class Issue:
    """One kind of problem: the first row with it (`line`, from 1), and the number of rows with it."""

    level: str
    file: str
    line: int | None
    field: str
    message: str
    fix: str
    rows: int

    @classmethod
    def of(cls, error: DataError, file: str) -> "Issue":
        """The problem of an error that ends reading."""
        return cls(ERROR, file, error.line, error.field, error.message, error.fix, 1 if error.line else 0)


class Issues:
    """The problems of a file. Messages that differ only in quoted texts and numbers are one kind."""

    def __init__(self, file: str) -> None:
        self.errors = 0
        self._file = file
        self._first: dict[str, dict[str, Issue]] = {ERROR: {}, WARNING: {}}
        self._rows: Counter[str] = Counter()

    def add(self, level: str, error: DataError, line: int | None, rows: int = 1) -> None:
        """Counts a problem of `rows` rows, the first at `line`."""
        kind = _VARIABLE.sub("#", f"{level} {error.field} {error.message}")
        first = self._first[level]
        self.errors += level == ERROR
        if kind in first or len(first) < KINDS:
            first.setdefault(kind, Issue(level, self._file, line, error.field, error.message, error.fix, 0))
            self._rows[kind] += rows

    def listed(self) -> list[Issue]:
        """The first kinds, errors before warnings."""
        kinds = [*self._first[ERROR].items(), *self._first[WARNING].items()][:KINDS]
        return [replace(issue, rows=self._rows[kind]) for kind, issue in kinds]

    def faulty(self, field: str) -> bool:
        """True if the field has an error."""
        return any(issue.field == field for issue in self._first[ERROR].values())

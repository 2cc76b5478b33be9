"""Everything that is wrong with a file, by kind: where it comes first, and in how many rows."""

import re
from collections import Counter
from dataclasses import dataclass, replace

from training.failure import DataError

ERROR, WARNING = "error", "warning"
KINDS = 20
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass(frozen=True)
class Issue:
    """One kind of problem: the first row that has it (`line`, from 1), and how many rows do."""

    level: str
    file: str
    line: int | None
    field: str
    message: str
    fix: str
    rows: int

    @classmethod
    def of(cls, error: DataError, file: str) -> "Issue":
        """A problem of the file as a whole."""
        return cls(ERROR, file, error.line, error.field, error.message, error.fix, 1 if error.line else 0)


class Issues:
    """The problems of a file. The texts and numbers in a message tell two rows apart, not two kinds."""

    def __init__(self, file: str) -> None:
        self.errors = 0
        self._file = file
        self._first: dict[str, dict[str, Issue]] = {ERROR: {}, WARNING: {}}
        self._rows: Counter[str] = Counter()

    def add(self, level: str, error: DataError, line: int | None, rows: int = 1) -> None:
        """Counts a problem that `rows` rows have, the first of them at `line`."""
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
        """Whether an error was found in that field."""
        return any(issue.field == field for issue in self._first[ERROR].values())

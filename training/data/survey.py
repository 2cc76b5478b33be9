"""Checks every row of a file once: its format, its example and its problems."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from training.data.content_mapping import suggest_by_any
from training.data.conversations import best_path, root_of
from training.data.example import ONE_CLASS, ONE_CLASS_FIX, EmptyRow, Row, kind_of
from training.data.mapping import format_of, in_file, parse_mapping, through, write_mapping
from training.data.row_format import RowFormat
from training.data.row_formats import MAPPED, UNKNOWN, UnknownFormat, find_format, listed, named
from training.data.to_examples import to_example
from training.data.usual_columns import unused_columns, vanished_texts
from training.errors import DataError

ERROR, WARNING = "error", "warning"
KINDS = 20
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
MOST_COLUMNS = 500
_MAX_SIGNATURES = 2000
_EXACT = 2**53  # many programs round larger integers
_NUMBERS = {int: float}  # both are reported as numbers
_TYPE_NAMES = {str: "text", float: "a number", bool: "true or false", list: "a list", dict: "an object"}
SAMPLE_ROWS = 5
_SHOWN_CHARACTERS, _SHOWN_ENTRIES = 400, 5  # of a value in the sample
_OWN_TEXT_FIX = "Move its text into the conversation, or remove the column."


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


class Survey:
    """The format, sample and problems of the rows added so far."""

    def __init__(self, file: str, columns: str | None = None) -> None:
        self.issues = Issues(file)
        self.columns = Columns()
        self.sample: list[Row] = []
        self._first: list[Row] = []
        self.counts: Counter[str] = Counter()
        self.rows = self.empty = self.unknown = 0
        self._mapping = parse_mapping(columns) if columns else None
        self._classes: set[str] = set()
        self._unwanted = self._other_replies = self._first_other = 0
        self._reasons: dict[str, str] = {}

    def add(self, record: Row | DataError) -> None:
        self.rows += 1
        if isinstance(record, DataError):
            self.issues.add(ERROR, record, self.rows)
            return
        self.columns.add(record)
        if len(self.sample) < SAMPLE_ROWS:
            self.sample.append(shorten(record))
            self._first.append(record)
        try:
            self._check(record)
        except EmptyRow as error:
            self.empty += 1
            self.issues.add(WARNING, error, self.rows)
        except DataError as error:
            self.issues.add(ERROR, error, self.rows)

    def _check(self, row: Row) -> None:
        row_format = format_of(self._mapping) if self._mapping else self._detect(row)
        self.counts[row_format] += 1
        if self._mapping:
            through(self._mapping, row, lambda mapped: self._check_example(mapped, row_format))
        else:
            self._check_example(row, row_format)

    def _check_example(self, row: Row, row_format: str) -> None:
        example = to_example(row, row_format)
        if example.label is False:
            self._unwanted += 1
            message = "is false: supervised fine-tuning skips rows with a bad answer."
            self.issues.add(WARNING, DataError(message, "Use it with task kto.", field="label"), self.rows)
        if row_format == RowFormat.CLASSIFIED and len(self._classes) < 2:
            self._classes.add(example.answer)
        for name in vanished_texts(row, example):
            column = in_file(self._mapping or {}, name)
            error = DataError("is not used: the conversation has its own.", _OWN_TEXT_FIX, field=column)
            self.issues.add(WARNING, error, self.rows)
        if row_format == RowFormat.TREE and (others := best_path(root_of(row) or {})[1]):
            self._other_replies += others
            self._first_other = self._first_other or self.rows

    def _detect(self, row: Row) -> str:
        try:
            detected = find_format(row)
        except UnknownFormat:
            self._check_unknown(row)
            raise
        if self.counts and (detected.format == RowFormat.PROMPT) != (self.format == RowFormat.PROMPT):
            to_example(row, self.format)  # names the column that the row lacks
            message = "has an answer, and the rows before are prompts without one."
            raise DataError(message, "Give every row an answer, or no row.", field="prompt")
        self._reasons.setdefault(detected.format, detected.reason)
        return detected.format

    def _check_unknown(self, row: Row) -> None:
        """Checks a row of unknown format against the format of the earlier rows; raises a DataError if they differ."""
        if self.counts:
            try:
                to_example(row, self.format)
            except EmptyRow as error:
                raise DataError(error.message, error.fix, field=error.field) from None
        else:
            self.unknown += 1

    @property
    def format(self) -> str:
        """The most frequent format."""
        return self.counts.most_common(1)[0][0] if self.counts else UNKNOWN

    @property
    def mappable(self) -> bool:
        """True if the only errors are unknown columns."""
        return 0 < self.unknown == self.issues.errors

    def suggestion(self) -> str:
        """A column mapping for a file of unknown format that fits its first rows; empty if none does."""
        return (suggest_by_any(self._first) or "") if self.mappable and not self._mapping else ""

    def reason(self) -> str:
        if self._mapping:
            roles = listed([f"{role} from {path}" for role, path in self._mapping.items()])
            return f"column mapping: {roles}, read as {self.format}"
        if not self.counts:
            return f"the columns {named(list(self.columns.names))} match no known format"
        reason, count = self._reasons[self.format], self.counts[self.format]
        return (
            reason if count == self.rows else reason.replace("every row has", f"{count:,} of {self.rows:,} rows have")
        )

    def conclude(self) -> None:
        """Adds the problems that depend on all rows."""
        if not self.rows and not self.issues.errors:
            self.issues.add(ERROR, DataError("has no rows.", "Use a file with at least one row."), None, 0)
        elif not self.issues.errors and self.empty + self._unwanted == self.rows:
            message = "has no row with a prompt and an answer."
            self.issues.add(ERROR, DataError(message, "Fill in the rows, or choose other columns."), None, self.rows)
        if len(self.counts) > 1:
            parts = ", ".join(f"{rows:,} of {name}" for name, rows in self.counts.most_common())
            error = DataError(f"mixes rows of several formats: {parts}.", "Save each format as its own file.")
            self.issues.add(ERROR if self.issues.errors else WARNING, error, None, self.rows)
        if len(self._classes) == 1 and self.rows > 1:
            self.issues.add(WARNING, DataError(ONE_CLASS, ONE_CLASS_FIX, field="label"), 1, self.rows)
        if self._other_replies:
            message = f"has {self._other_replies:,} further replies, which are not used: of each message one reply is, the best."
            fix = "Write one row for each conversation to train on all."
            self.issues.add(WARNING, DataError(message, fix, field="replies"), self._first_other, self.rows)
        for remark, line, rows in self.columns.remarks(gaps=len(self.counts) < 2):
            if not self.issues.faulty(remark.field):
                self.issues.add(WARNING, remark, line, rows)

    def unused(self) -> list[str]:
        """The columns that nothing uses; none for a file of unknown format."""
        mapping = write_mapping(self._mapping) if self._mapping else None
        return unused_columns(self.columns.names, self.counts, mapping) if self.counts else []

    def counted(self) -> dict[str, int]:
        return {MAPPED: self.counts.total()} if self._mapping else dict(self.counts.most_common())


class Columns:
    """The columns of all rows added. Rows with the same columns and types are checked once."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._rows = 0
        self._signatures: dict[tuple[Any, ...], list[Any]] = {}
        self._large: dict[str, list[int]] = {}

    def add(self, row: Row) -> None:
        self._rows += 1
        signature = (*row, *map(type, row.values()))
        entry = self._signatures.get(signature)
        if entry is None:
            entry = self._new(signature, row)
        entry[0] += 1
        for name in entry[2]:
            if not -_EXACT <= row[name] <= _EXACT:
                large = self._large.setdefault(name, [self._rows, 0])
                large[1] += 1

    def _new(self, signature: tuple[Any, ...], row: Row) -> list[Any]:
        if len(self._signatures) >= _MAX_SIGNATURES:
            signature = ()
        for name in row:
            if len(self.names) < MOST_COLUMNS:
                self.names.setdefault(name)
        whole = [name for name, value in row.items() if type(value) is int] if signature else []
        return self._signatures.setdefault(signature, [0, self._rows, whole])

    def remarks(self, *, gaps: bool = True) -> Iterator[tuple[DataError, int, int]]:
        """Yields warnings with their first row and number of rows; `gaps` includes columns that some rows lack."""
        if len(self.names) >= MOST_COLUMNS:
            message = f"has {MOST_COLUMNS} columns or more."
            yield DataError(message, "Keep only the columns for training."), 1, self._rows
            return
        kinds = self._kinds()
        for name in self.names:
            yield from self._gap(name, kinds[name]) if gaps else ()
            yield from self._differing(name, kinds[name])
        for name, (line, rows) in self._large.items():
            message = f"contains an integer above {_EXACT:,}, which many programs round."
            yield DataError(message, "Write it as text if it is an identifier.", field=name), line, rows

    def _kinds(self) -> dict[str, dict[type, list[int]]]:
        """For each column and type: the first row and the number of rows."""
        kinds: dict[str, dict[type, list[int]]] = defaultdict(dict)
        for signature, (rows, line, _) in self._signatures.items():
            half = len(signature) // 2
            for name, kind in zip(signature[:half], signature[half:], strict=True):
                entry = kinds[name].setdefault(_NUMBERS.get(kind, kind), [line, 0])
                entry[0], entry[1] = min(entry[0], line), entry[1] + rows
        return kinds

    def _gap(self, name: str, kinds: dict[type, list[int]]) -> Iterator[tuple[DataError, int, int]]:
        missing = self._rows - sum(rows for _, rows in kinds.values())
        if missing > 0 and () not in self._signatures:
            message = f"is missing in {missing:,} of {self._rows:,} rows."
            without = [
                line
                for signature, (_, line, _) in self._signatures.items()
                if name not in signature[: len(signature) // 2]
            ]
            yield DataError(message, "Write the same columns in every row.", field=name), min(without), missing

    def _differing(self, name: str, kinds: dict[type, list[int]]) -> Iterator[tuple[DataError, int, int]]:
        filled = {kind: place for kind, place in kinds.items() if kind is not type(None)}
        if not filled:
            yield DataError("is null in every row.", "Fill in the column, or delete it.", field=name), 1, self._rows
        if len(filled) > 1:
            counts = Counter({kind: rows for kind, (_, rows) in filled.items()}).most_common()
            types = " and ".join(f"{_TYPE_NAMES.get(kind, kind.__name__)} in {rows:,}" for kind, rows in counts)
            rare = counts[-1][0]
            line, rows = filled[rare]
            yield DataError(f"is {types} rows.", "Use one type in all rows.", field=name), line, rows


def shorten(value: Any, depth: int = 8) -> Any:
    """A value for the sample: long texts, long lists and deep objects are shortened."""
    if isinstance(value, str):
        return value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
    if isinstance(value, (list, dict)) and not depth:
        return f"({kind_of(value)})"
    if isinstance(value, dict):
        return {
            str(key)[:_SHOWN_CHARACTERS]: shorten(item, depth - 1) for key, item in list(value.items())[:MOST_COLUMNS]
        }
    if isinstance(value, list):
        return [shorten(item, depth - 1) for item in value[:_SHOWN_ENTRIES]]
    return value if isinstance(value, (int, float, bool, type(None))) else shorten(str(value))

"""Looking at every row of a file once: which format it has, whether it trains, and what is wrong."""

from collections import Counter

from training.columns import Columns, shorten
from training.example import EmptyRow, Row
from training.failure import DataError
from training.formats import MAPPED, UNKNOWN, UnknownFormat, find_format, listed, named
from training.issues import ERROR, WARNING, Issues
from training.mapping import apply, format_of, in_file, parse_mapping
from training.shapes import to_example

SAMPLE_ROWS = 5


class Survey:
    """What is known of the rows so far."""

    def __init__(self, file: str, columns: str | None = None) -> None:
        self.issues = Issues(file)
        self.columns = Columns()
        self.sample: list[Row] = []
        self.counts: Counter[str] = Counter()
        self.rows = self.empty = self.unknown = 0
        self._mapping = parse_mapping(columns) if columns else None
        self._unwanted = 0
        self._first_unwanted = 0
        self._reasons: dict[str, str] = {}

    def add(self, record: Row | DataError) -> None:
        self.rows += 1
        if isinstance(record, DataError):
            self.issues.add(ERROR, record, self.rows)
            return
        self.columns.add(record)
        if len(self.sample) < SAMPLE_ROWS:
            self.sample.append(shorten(record))
        try:
            self._look(record)
        except EmptyRow as error:
            self.empty += 1
            self.issues.add(WARNING, self._in_file(error), self.rows)
        except DataError as error:
            self.issues.add(ERROR, self._in_file(error), self.rows)

    def _look(self, row: Row) -> None:
        if self._mapping:
            found, row = format_of(self._mapping), apply(self._mapping, row)
        else:
            found = self._find(row)
        self.counts[found] += 1
        if to_example(row, found).label is False:
            self._first_unwanted = self._first_unwanted or self.rows
            self._unwanted += 1

    def _find(self, row: Row) -> str:
        try:
            found = find_format(row)
        except UnknownFormat:
            self._look_at_odd(row)
            raise
        self._reasons.setdefault(found.format, found.reason)
        return found.format

    def _look_at_odd(self, row: Row) -> None:
        """Says of a row of no known format what it lacks of the format of the rows before it."""
        if self.counts:
            try:
                to_example(row, self.format)
            except EmptyRow as error:
                raise DataError(error.message, error.fix, field=error.field) from None
        else:
            self.unknown += 1

    def _in_file(self, error: DataError) -> DataError:
        return (
            DataError(error.message, error.fix, field=in_file(self._mapping, error.field)) if self._mapping else error
        )

    @property
    def format(self) -> str:
        """The format of most rows."""
        return self.counts.most_common(1)[0][0] if self.counts else UNKNOWN

    @property
    def mappable(self) -> bool:
        """Whether nothing stands against training but that no known format has these columns."""
        return 0 < self.unknown == self.issues.errors

    def reason(self) -> str:
        if self._mapping:
            roles = listed([f"{role} from {path}" for role, path in self._mapping.items()])
            return f"a mapping says so: {roles}, read as {self.format}"
        if not self.counts:
            return f"no known format is made of the columns {named(list(self.columns.names))}"
        reason, count = self._reasons[self.format], self.counts[self.format]
        return (
            reason if count == self.rows else reason.replace("every row has", f"{count:,} of {self.rows:,} rows have")
        )

    def conclude(self) -> None:
        """Adds what only the whole file can tell."""
        if not self.rows and not self.issues.errors:
            self.issues.add(ERROR, DataError("holds no rows.", "Give a file with at least one row."), None, 0)
        elif not self.issues.errors and self.empty + self._unwanted == self.rows:
            message = "has no row with a prompt and an answer to learn."
            self.issues.add(ERROR, DataError(message, "Fill the rows in, or choose other columns."), None, self.rows)
        if len(self.counts) > 1:
            parts = ", ".join(f"{rows:,} of {name}" for name, rows in self.counts.most_common())
            error = DataError(f"mixes rows of several formats: {parts}.", "Give each format a file of its own.")
            self.issues.add(ERROR if self.issues.errors else WARNING, error, None, self.rows)
        if self._unwanted:
            message = "is false: the answer is unwanted, and training on answers leaves the row out."
            error = DataError(message, "Keep it for training on preferences.", field="label")
            self.issues.add(WARNING, error, self._first_unwanted, self._unwanted)
        for remark, line, rows in self.columns.remarks(gaps=len(self.counts) < 2):
            if not self.issues.faulty(remark.field):
                self.issues.add(WARNING, remark, line, rows)

    def counted(self) -> dict[str, int]:
        return {MAPPED: self.counts.total()} if self._mapping else dict(self.counts.most_common())

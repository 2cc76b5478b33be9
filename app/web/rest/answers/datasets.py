"""Data sets, their rows, checks and imports."""

from typing import Any, Literal

from pydantic import Field

from app.web.rest.answers.form import Answer, columns
from training.data.issues import Issue
from worker.store.tables import Dataset, Status


@columns(Dataset, ("id", "name", "owner", "rows", "bytes", "created_at"))
class DatasetInList(Answer):
    """A data set in a list. `used_by` is the number of runs that use it, `warning_kinds` that of its kinds of warnings."""

    format: str = Field(description="format of the rows, such as messages or prompt/completion; unknown if none fits")
    file_format: str
    used_by: int
    warning_kinds: int


class DatasetList(Answer):
    """The data sets that match, newest first, and how many match in all."""

    datasets: list[DatasetInList]
    total: int


class User(Answer):
    """A run that uses a data set."""

    id: str
    name: str
    status: Status


@columns(
    Dataset,
    (
        "id",
        "name",
        "owner",
        "rows",
        "bytes",
        "created_at",
        "sha256",
        "reason",
        "counts",
        "columns",
        "columns_map",
        "sample",
    ),
)
class DatasetAnswer(Answer):
    """A data set with its warnings, its first rows and the runs that use it, newest first."""

    format: str = Field(description="format of the rows, such as messages or prompt/completion; unknown if none fits")
    file_format: str
    warnings: list[Issue]
    unused_columns: list[str] = Field(description="columns that training does not use")
    runs: list[User]


class Check(Answer):
    """The report on a file; nothing was stored. `suggestion` is a column mapping that fits the first rows, if one does."""

    file_format: str
    format: str
    reason: str
    rows: int
    columns: list[str]
    counts: dict[str, int] = Field(description="rows of each format")
    empty_rows: int
    trainable: bool = Field(description="true if there are no errors")
    suggestion: str
    unused: list[str] = Field(description="columns that training does not use")
    problems: list[Issue]


class RowAnswer(Answer):
    """A row with its number from 1; `cut` names the columns whose values are shortened."""

    row: int
    values: dict[str, Any]
    cut: list[str]
    problem: str = Field(default="", description="why the row cannot be read")
    fix: str = ""


class Rows(Answer):
    """Rows of a data set. `next` is the offset of the rows after them, null at the end.

    Answers to a search have `complete` (false while it continues in the background), `more` (true if it stopped at 1,000 rows) and
    `searched` (rows read).
    """

    rows: list[RowAnswer]
    offset: int
    total: int = Field(description="rows of the data set; of a search, rows found so far")
    next: int | None
    complete: bool | None = None
    more: bool | None = None
    searched: int | None = None


class ImportProblem(Answer):
    """Why an import was refused: the file, the first row (`line`, from 1), and the number of rows with this problem."""

    level: str
    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    rows: int | None = None


class Added(Answer):
    """A data set that an import stored."""

    id: str
    name: str


class ImportAnswer(Answer):
    """An import in the background. It stays listed for two minutes after it is done, and for an hour if it was refused."""

    id: int
    name: str
    owner: str
    state: Literal["checking", "done", "refused"]
    bytes: int = Field(description="size of the file; 0 if it is not known yet")
    since: float = Field(description="seconds since the epoch")
    problems: list[ImportProblem]
    datasets: list[Added]


class ImportList(Answer):
    """The imports of this server, oldest first."""

    imports: list[ImportAnswer]


class Files(Answer):
    """The files of the server that can be imported; `reason` tells why there can be none."""

    files: list[str]
    reason: str


class TokenProblem(Answer):
    """Why a data set cannot be tokenized."""

    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    field: str | None = None


class WorstBatch(Answer):
    """The largest batch of a run: its rows from 1, and its place: epoch and rank from 0, step and micro step from 1."""

    epoch: int
    step: int
    rank: int
    micro: int
    rows: list[int]
    longest: int = Field(description="tokens of its longest row")
    tokens: int


class LongRow(Answer):
    """A row, from 1, and its tokens."""

    row: int
    tokens: int


class TokenReport(Answer):
    """The statistics of a tokenized data set. Rows are counted from 1."""

    tokens: dict[str, int] = Field(description="median, p95 and max of a row, and the total")
    rows: int
    empty_rows: int
    duplicate_rows: int
    near_duplicate_rows: int
    histogram: dict[str, list[int]] = Field(description="edges, in tokens, and counts of rows between them")
    cut_offs: list[dict[str, float]] = Field(
        description="for limits: the shares of truncated rows, of lost tokens, and of rows without loss tokens"
    )
    scripts: list[dict[str, Any]] = Field(description="rows, characters and tokens of each writing system")
    untrained_at: dict[str, int] = Field(description="rows without loss tokens at each maximum length")
    duplicate_examples: list[list[int]] = Field(description="[row, the earlier row that it equals]")
    near_duplicate_examples: list[list[int]]
    longest_rows: list[LongRow]
    truncated_rows: int
    lost_tokens: int
    untrained_rows: int
    train_rows: int
    held_out_rows: int
    problem: str
    padding_waste: float = Field(description="share of pad tokens")
    packing_waste: float
    worst_batches: list[WorstBatch]


class Tokenization(Answer):
    """How far the data set is tokenized, in rows, and its statistics once it is done."""

    status: Literal["absent", "running", "done", "failed"]
    done: int
    total: int
    problem: TokenProblem | None
    report: TokenReport | None


class Token(Answer):
    """A token. `trained`: it carries loss; `cut`: it is beyond the maximum length. `text` is empty if a character continues."""

    id: int
    text: str
    trained: bool
    cut: bool
    special: bool


class RowTokens(Answer):
    """A row as tokens; `length` is the number of all."""

    row: int
    length: int
    tokens: list[Token]

"""Rows of a data set: a page of them, those that contain a text, and as a model's tokens."""

from typing import Any, Literal

from pydantic import Field

from app.documents import Document, columns
from training.config.fields import ConfigError
from training.errors import Problem
from training.tokens import order
from worker.datasets import datasets, row_pages, row_search
from worker.datasets.token_report import Token
from worker.store.tables import Dataset

MOST = 200
"""Rows in one answer."""


class RowAnswer(Document):
    """A row with its number from 1; `cut` names the columns whose values are shortened."""

    row: int
    values: dict[str, Any]
    cut: list[str]
    problem: str = Field(default="", description="why the row cannot be read")
    fix: str = ""


class Rows(Document):
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


def document(item: Dataset, offset: int, limit: int, search: str = "", *, seconds: float) -> Rows:
    """The rows after the first `offset`, or those of them that contain `search`.

    A search that takes more than `seconds` continues in the background. `complete` is then false; the same search later returns
    more rows.

    Raises:
        ConfigError: no character of the search can be searched for.
        DataError: the rows cannot be read.
    """
    if search:
        return _found(item, offset, limit, search, seconds)
    path = datasets.path_of(item)
    count = min(limit, item.rows - offset)
    rows = row_pages.page(path, offset + 1, count) if count > 0 else []
    end = offset + len(rows)
    return Rows(rows=_answers(rows), offset=offset, total=item.rows, next=end if end < item.rows else None)


def _found(item: Dataset, offset: int, limit: int, text: str, seconds: float) -> Rows:
    if not row_search.plain(text):
        raise ConfigError([Problem("search", text[:50], "contains no text.", "Give the text to search for.")])
    search = row_search.search(datasets.path_of(item), text, again=True)
    search.wait(offset + limit + 1, seconds)
    complete = search.state is not row_search.SearchState.RUNNING
    if search.problem:
        raise ConfigError([Problem("search", text[:50], search.problem, "Check the file: lathe dataset check FILE")])
    found = list(search.matches)
    end = offset + limit
    return Rows(
        rows=_answers(found[offset:end]),
        offset=offset,
        total=len(found),
        next=end if end < len(found) else None,
        complete=complete,
        more=search.more,
        searched=item.rows if complete and not search.more else search.read,
    )


def _answers(rows: list[dict[str, Any]]) -> list[RowAnswer]:
    return [RowAnswer(**row) for row in rows]


class TokenProblem(Document):
    """Why a data set cannot be tokenized."""

    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    field: str | None = None


@columns(order.WorstBatch)
class WorstBatch(Document):
    """The largest batch of a run: its rows from 1, and its place: epoch and rank from 0, step and micro step from 1. `longest` is
    the number of tokens of its longest row."""


class LongRow(Document):
    """A row, from 1, and its tokens."""

    row: int
    tokens: int


class TokenReport(Document):
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
    untrained_at: dict[int, int] = Field(description="rows without loss tokens at each maximum length")
    duplicate_examples: list[list[int]] = Field(description="[row, the earlier row that it equals]")
    near_duplicate_examples: list[list[int]]
    longest_rows: list[LongRow]
    truncated_rows: int
    lost_tokens: int
    untrained_rows: int
    train_rows: int
    held_out_rows: int
    leaked_rows: int | None = Field(
        description="held-out rows that are near duplicates of training rows; null where these are not known"
    )
    leaked_rows_ungrouped: int | None = Field(description="the same if each row stood by itself (group_by none)")
    problem: str
    padding_waste: float = Field(description="share of pad tokens")
    packing_waste: float
    worst_batches: list[WorstBatch]


class Tokenization(Document):
    """How far the data set is tokenized, in rows, and its statistics once it is done."""

    status: Literal["absent", "running", "done", "failed"]
    done: int
    total: int
    problem: TokenProblem | None
    report: TokenReport | None


class RowTokens(Document):
    """A row as tokens; `length` is the number of all."""

    row: int
    length: int
    tokens: list[Token]

"""REST routes of tokenized data sets: their statistics, and a row as tokens."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from app.access import callers
from app.documents import dataset as document
from app.web.rest.routing import MOST, Answer, answers
from training.config.fields import ConfigError
from training.errors import Problem
from training.tokens.store import TokenStore, open_store
from worker.datasets import datasets, token_counts, token_report
from worker.datasets.token_counts import TokenCount
from worker.runs.settle import find_model
from worker.store import database
from worker.store.tables import Dataset


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


router = APIRouter(prefix="/api/datasets/{dataset_id}")

Model = Annotated[str, Query(min_length=1, max_length=1000, description="Hub id or folder on the server of the model.")]
MaxLength = Annotated[int, Query(ge=8, le=2**20, description="Maximum sequence length in tokens.")]
Count = Annotated[int, Query(ge=1, le=4096)]


@router.get("/tokens", **answers(Tokenization))
def show_tokens(
    dataset_id: str,
    model: Model,
    max_length: MaxLength = 1024,
    micro_batch_size: Count = 1,
    gradient_accumulation_steps: Count = 1,
    num_processes: Count = 1,
    epochs: Annotated[float, Query(gt=0, le=1000)] = 3.0,
    eval_split: Annotated[float, Query(ge=0, lt=1)] = 0.0,
    seed: Annotated[int, Query(ge=0, lt=2**32)] = 42,
    retry: Annotated[bool, Query(description="Tokenize again after a failure.")] = False,
) -> dict[str, Any]:
    """The statistics of a data set tokenized for a model. The first request starts to tokenize it in the background: ask again
    until `status` is done.
    """
    found = _state(_item(dataset_id), _folder(model), retry=retry)
    values = {"status": found.status, "done": found.done, "total": found.total, "problem": found.problem}
    if found.store is None:
        return values | {"report": None}
    report = token_report.report(
        found.store,
        max_length=max_length,
        micro_batch=micro_batch_size,
        accumulation=gradient_accumulation_steps,
        world=num_processes,
        epochs=epochs,
        eval_split=eval_split,
        seed=seed,
    )
    return values | {"report": report}


@router.get("/rows/{row}/tokens", **answers(RowTokens))
def show_row_tokens(
    dataset_id: str,
    row: Annotated[int, Path(ge=1, le=MOST, description="The number of the row, from 1.")],
    model: Model,
    max_length: MaxLength = 1024,
) -> dict[str, Any]:
    """A row, from 1, as the tokens that a model gets, up to 20,000 of them. The data set has to be tokenized for the model.

    Raises:
        ConfigError: it is not tokenized, or has no such row; answered with 422.
    """
    item, folder = _item(dataset_id), _folder(model)
    found = token_counts.state(item.sha256, folder, item.columns_map)
    if found.store is None:
        fix = f"Ask for /api/datasets/{item.id}/tokens with the same model until its status is done."
        raise ConfigError([Problem("model", model, "the data set is not tokenized for it yet.", fix)])
    store = open_store(found.store)
    tokens = token_report.rendered_row(store, _index(store, row), max_length)
    return {"row": row, "length": int(store.lengths[row - 1]), "tokens": [asdict(token) for token in tokens]}


def _item(dataset_id: str) -> Dataset:
    with database.read() as session:
        return document.find(session, dataset_id)


def _folder(model: str) -> str:
    """The model's folder or hub id, if the caller may read it."""
    return str(find_model(model, callers.current().allowed) or model)


def _state(item: Dataset, model: str, *, retry: bool) -> TokenCount:
    path = datasets.path_of(item)
    return token_counts.measure(path, item.sha256, model, item.columns_map, rows=item.rows, name=item.name, retry=retry)


def _index(store: TokenStore, row: int) -> int:
    if not 1 <= row <= len(store.lengths):
        fix = f"Give a row from 1 to {len(store.lengths):,}."
        raise ConfigError([Problem("row", row, "does not exist.", fix)])
    return row - 1

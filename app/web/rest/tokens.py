"""REST routes of tokenized data sets: their statistics, and a row as tokens."""

from typing import Annotated

from fastapi import Path, Query

from app.access import callers
from app.documents import dataset as documents
from app.documents.rows import RowTokens, Tokenization
from app.web.rest.routing import MOST, JsonRouter
from training.config.fields import ConfigError
from training.errors import Problem
from training.model_info.folder import describe_model
from training.tokens.store import TokenStore, open_store
from worker.datasets import datasets, token_report, token_stores
from worker.datasets.token_stores import TokenCount
from worker.runs.settle import find_model
from worker.store.tables import Dataset

router = JsonRouter(prefix="/api/datasets/{dataset_id}")

Model = Annotated[str, Query(min_length=1, max_length=1000, description="Hub id or folder on the server of the model.")]
MaxLength = Annotated[int, Query(ge=8, le=2**20, description="Maximum sequence length in tokens.")]
Count = Annotated[int, Query(ge=1, le=4096)]


@router.get("/tokens")
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
) -> Tokenization:
    """The statistics of a data set tokenized for a model. The first request starts to tokenize it in the background: ask again
    until `status` is done.
    """
    found = _state(documents.stored(dataset_id), _folder(model), retry=retry)
    report = found.store and token_report.report(
        open_store(found.store),
        max_length=max_length,
        micro_batch=micro_batch_size,
        accumulation=gradient_accumulation_steps,
        world=num_processes,
        epochs=epochs,
        eval_split=eval_split,
        seed=seed,
    )
    values = {"status": found.status, "done": found.done, "total": found.total, "problem": found.problem}
    return Tokenization.model_validate(values | {"report": report})


@router.get("/rows/{row}/tokens")
def show_row_tokens(
    dataset_id: str,
    row: Annotated[int, Path(ge=1, le=MOST, description="The number of the row, from 1.")],
    model: Model,
    max_length: MaxLength = 1024,
) -> RowTokens:
    """A row, from 1, as the tokens that a model gets, up to 20,000 of them. The data set has to be tokenized for the model."""
    item, folder = documents.stored(dataset_id), _folder(model)
    found = token_stores.state(item.sha256, folder, item.columns_map)
    if found.store is None:
        fix = f"Ask for /api/datasets/{item.id}/tokens with the same model until its status is done."
        raise ConfigError([Problem("model", model, "the data set is not tokenized for it yet.", fix)])
    store = open_store(found.store)
    tokens = token_report.rendered_row(store, _index(store, row), max_length)
    return RowTokens(row=row, length=store.lengths[row - 1], tokens=tokens)


def _folder(model: str) -> str:
    """The model's folder or hub id, if the caller may read it."""
    if path := find_model(model, callers.current().allowed):
        return str(path)
    describe_model(model)  # raises ModelError unless it may be a hub id
    return model


def _state(item: Dataset, model: str, *, retry: bool) -> TokenCount:
    path = datasets.path_of(item)
    return token_stores.measure(path, item.sha256, model, item.columns_map, rows=item.rows, name=item.name, retry=retry)


def _index(store: TokenStore, row: int) -> int:
    if not 1 <= row <= len(store.lengths):
        fix = f"Give a row from 1 to {len(store.lengths):,}."
        raise ConfigError([Problem("row", row, "does not exist.", fix)])
    return row - 1

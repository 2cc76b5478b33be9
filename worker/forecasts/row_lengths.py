"""The tokens of each row of a run's data sets."""

from dataclasses import dataclass

from training.chat.rendering_settings import ChatSettings
from training.config.data_sets import Source
from training.config.run_config import RunConfig
from training.tokens.order import Integers
from training.tokens.selection import SetRows
from training.tokens.store import TokenStore, joined, open_store
from worker.datasets import run_data, token_stores
from worker.store import database
from worker.store.tables import Dataset


@dataclass(frozen=True)
class RowLengths:
    """The tokens of each row, untruncated, and the index of the first token with loss (-1: none).

    `sets` are the data sets whose rows these are, one after another.
    """

    lengths: Integers
    first_trained: Integers
    sets: tuple[SetRows, ...] = ()


def count_rows(config: RunConfig) -> RowLengths | None:
    """The token counts of the run's data sets; None if one is not tokenized for its model yet."""
    stores, sets = [], []
    for source in config.sources:
        if (stored := _store(config, source)) is None:
            return None
        store, name = stored
        stores.append(store)
        sets.append(SetRows(store.rows, source.max_rows, name))
    rows = joined(stores)
    return RowLengths(rows.lengths, rows.first_trained_with(train_on_prompt=config.train_on_prompt), tuple(sets))


def _store(config: RunConfig, source: Source) -> tuple[TokenStore, str] | None:
    """The tokens of a data set and its name; None if it is not tokenized."""
    if not run_data.DATASET_ID.fullmatch(source.path):
        return None
    with database.read() as session:
        item = session.get(Dataset, source.path)
    if item is None:
        return None
    state = token_stores.state(
        item.sha256,
        config.model,
        source.columns or config.columns or item.columns_map,
        revision=config.revision,
        chat=ChatSettings.of(config).key,
    )
    return (open_store(state.store), source.name or item.name) if state.store else None

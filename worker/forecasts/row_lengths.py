"""The tokens of each row of a run's data sets, as far as they are tokenized."""

from collections.abc import Sequence
from dataclasses import replace

from training.chat.rendering_settings import ChatSettings
from training.config.data_sets import Source
from training.config.run_config import RunConfig
from training.config.task import StoredText
from training.tokens.groups import known_near_groups
from training.tokens.run_rows import RowLengths, halved, rows_of
from training.tokens.selection import SetRows
from training.tokens.store import Store, TokenStore, joined, open_store
from worker.datasets import run_data, token_stores
from worker.store import database
from worker.store.tables import Dataset


def count_rows(config: RunConfig) -> RowLengths | None:
    """The token counts of the run's data sets; None if one is not tokenized for its model yet."""
    rows = _rows(config, config.sources)
    return rows and replace(rows, validation=_rows(config, config.validation_sources))


def first_stores(config: RunConfig, sources: Sequence[Source]) -> list[TokenStore] | None:
    """Of each data set the tokens of the first text that the task needs; None if they are not tokenized."""
    datasets = [_dataset(source) for source in sources]
    named = [(source, item) for source, item in zip(sources, datasets, strict=True) if item]
    found = _stores(config, named, config.task.traits.texts[:1]) if len(named) == len(datasets) else None
    return found[0] if found else None


def _rows(config: RunConfig, sources: Sequence[Source]) -> RowLengths | None:
    datasets = [_dataset(source) for source in sources]
    if not datasets or None in datasets:
        return None
    named = [(source, item) for source, item in zip(sources, datasets, strict=True) if item]
    if parts := _stores(config, named, config.task.traits.texts):
        sets = _sets(named, parts[0])
        rows = rows_of(config, [joined(stores) for stores in parts], sets)
        return replace(rows, near=known_near_groups(joined(parts[0])))
    # A data set's page does not count rows with undesirable answers.
    whole = None if config.task.traits.labels_answers else _stores(config, named, (StoredText.WHOLE,))
    return _from_whole(config, joined(whole[0]), _sets(named, whole[0])) if whole else None


def _from_whole(config: RunConfig, store: Store, sets: tuple[SetRows, ...]) -> RowLengths:
    """The rows of a task whose texts are not tokenized, but the data set is: prompts are at most as long as their rows."""
    first_trained = store.first_trained_with(train_on_prompt=config.train_on_prompt)
    rows = RowLengths(store.lengths, first_trained, sets, hashes=store.hashes, near=known_near_groups(store))
    return halved(rows) if config.task.traits.has_encoder else rows


def _sets(named: Sequence[tuple[Source, Dataset]], stores: Sequence[TokenStore]) -> tuple[SetRows, ...]:
    return tuple(
        SetRows(store.rows, source.max_rows, source.name or item.name)
        for (source, item), store in zip(named, stores, strict=True)
    )


def _stores(
    config: RunConfig, named: Sequence[tuple[Source, Dataset]], parts: Sequence[StoredText]
) -> list[list[TokenStore]] | None:
    """Of each part the tokens of each data set; None if some are not tokenized."""
    found = [[_store(config, source, item, part) for source, item in named] for part in parts]
    stores = [[store for store in of_part if store] for of_part in found]
    return stores if stores == found else None


def _dataset(source: Source) -> Dataset | None:
    if not run_data.DATASET_ID.fullmatch(source.path):
        return None
    with database.read() as session:
        return session.get(Dataset, source.path)


def _store(config: RunConfig, source: Source, item: Dataset, part: StoredText) -> TokenStore | None:
    """The tokens of a part of a data set's rows; None if it is not tokenized."""
    columns, chat = source.columns or config.columns or item.columns_map, ChatSettings.of(config).key
    state = token_stores.state(item.sha256, config.model, columns, revision=config.revision, part=part, chat=chat)
    return open_store(state.store) if state.store else None

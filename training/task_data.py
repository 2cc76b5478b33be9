"""The rows of a file as a task takes them: one token store of it or two, and the labels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.config import RunConfig, Task
from training.data import TokenView
from training.example import Example
from training.failure import DataError
from training.order import Integers
from training.parts import PARTS, Part
from training.rows import read_numbered
from training.token_store import TokenStore
from training.views import ChunkView, LabelView, PairView, TargetView, View

_ENDLESS = 2**31 - 1


@dataclass(frozen=True)
class TaskRows:
    """A file's rows for the task of a run. Arrays have an entry for every row of the file."""

    config: RunConfig
    stores: tuple[TokenStore, ...]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = field(default=())

    @property
    def limit(self) -> int:
        """Beyond how many tokens a row is cut off: pretraining cuts none."""
        return _ENDLESS if self.config.task is Task.PRETRAINING else self.config.max_length

    @cached_property
    def lengths(self) -> Integers:
        """Tokens a row, of its longest part; 0 where a part is missing."""
        lengths = [store.lengths for store in self.stores]
        whole: Integers = reduce(np.minimum, lengths) > 0
        return np.where(whole, reduce(np.maximum, lengths), 0)

    @cached_property
    def first_trained(self) -> Integers:
        """By which token every part has begun to carry loss; -1 where one never does."""
        everything = self.config.train_on_prompt or self.config.task is Task.PRETRAINING
        firsts = [store.first_trained_with(train_on_prompt=everything) for store in self._learning]
        missing = (reduce(np.minimum, firsts) < 0) | (self.lengths == 0)
        return np.where(missing, -1, reduce(np.maximum, firsts))

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """Of a row's tokens, by which two sets are compared."""
        return self.stores[0].hashes

    @property
    def empty_rows(self) -> int:
        return max(int(store.facts["empty_rows"]) for store in self.stores)

    @property
    def _learning(self) -> tuple[TokenStore, ...]:
        """The stores whose tokens carry loss: not an encoder's input, which is whole from its first token on."""
        return self.stores[1:] if self.config.task is Task.SEQ2SEQ else self.stores

    def view(self, rows: Integers) -> View:
        """Some of the rows, cut and labelled."""
        config, limit = self.config, self.config.max_length
        match config.task:
            case Task.SFT:
                return TokenView(self.stores[0], rows, limit, train_on_prompt=config.train_on_prompt)
            case Task.PRETRAINING:
                return ChunkView(self.stores[0], rows, limit)
            case Task.SEQ2SEQ:
                source, target = self.stores
                longest = config.max_target_length or limit
                sides = (TokenView(source, rows, limit, train_on_prompt=True), _cut(target, rows, longest))
                return TargetView(*sides)
            case Task.DPO | Task.ORPO | Task.REWARD:
                chosen, rejected = self.stores
                return PairView(_cut(chosen, rows, limit), _cut(rejected, rows, limit))
            case Task.KTO | Task.CLASSIFICATION:
                assert self.labels is not None
                uncut = _cut(self.stores[0], rows, _ENDLESS) if config.task is Task.KTO else None
                return LabelView(_cut(self.stores[0], rows, limit), self.labels, uncut)


def _cut(store: TokenStore, rows: Integers, limit: int) -> TokenView:
    return TokenView(store, rows, limit, train_on_prompt=False)


def open_rows(
    config: RunConfig, source: Path, find: Callable[[Path, Part], TokenStore], classes: tuple[str, ...] | None = None
) -> TaskRows:
    """The rows of `source` for the run's task; `find` finds or makes the store of a part.

    `classes` are those that a classifier has already, from its training data.

    Raises:
        DataError: a row lacks what the task needs, or the classes are none or too many.
    """
    stores = tuple(find(source, part) for part in PARTS[config.task])
    if config.task is Task.KTO:
        return TaskRows(config, stores, _wanted(source, config.columns))
    if config.task is Task.CLASSIFICATION:
        labels, found = _classes(source, config.columns, classes)
        return TaskRows(config, stores, labels, found)
    return TaskRows(config, stores)


def _wanted(source: Path, columns: str | None) -> NDArray[np.int64]:
    """1 for a wanted answer, 0 for an unwanted one."""
    return np.array([_label(row, source, example) for row, example in _examples(source, columns)], np.int64)


def _label(row: int, source: Path, example: Example | None) -> int:
    if example is None:
        return 0
    if example.label is None:
        fix = "Give every row a label, true or false, or choose another task."
        raise DataError("has no label of an answer.", fix, file=source.name, line=row + 1, field="label")
    return int(example.label)


def _classes(
    source: Path, columns: str | None, known: tuple[str, ...] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The class of every row by its place among the classes; -1 for a row without one."""
    names = [example.answer.strip() if example else "" for _, example in _examples(source, columns)]
    found = known or _ordered({name for name in names if name})
    if len(found) < 2:
        message = f"has {len(found)} classes: {', '.join(found) or 'none'}."
        raise DataError(message, "Classification needs two or more.", file=source.name, field="label")
    place = {name: index for index, name in enumerate(found)}
    for row, name in enumerate(names):
        if name and name not in place:
            message = f"has the class {name!r}, which the training data has not."
            fix = "Remove the row, or train on rows of this class too."
            raise DataError(message, fix, file=source.name, line=row + 1, field="label")
    return np.array([place.get(name, -1) for name in names], np.int64), found


def _ordered(names: set[str]) -> tuple[str, ...]:
    """Numbers by their size, so that class 10 comes after class 9."""
    return tuple(sorted(names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)))


def _examples(source: Path, columns: str | None) -> Iterator[tuple[int, Example | None]]:
    return ((row, example) for row, _, example in read_numbered(source, columns, unwanted=True))

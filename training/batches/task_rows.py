"""The rows of a run's data as a task needs them: one or two token stores, and the labels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from training.batches.views import ChunkView, LabelView, PairView, TargetView, TokenView, View
from training.config.choices import Task
from training.config.run_config import RunConfig
from training.data.example import Example, check_classes
from training.data.rows import DataFile, read_files
from training.errors import DataError
from training.tokens.lengths import ENDLESS
from training.tokens.order import Integers
from training.tokens.parts import STORED_TEXTS, StoredText
from training.tokens.store import Store, TokenStore, ends_of, joined


@dataclass(frozen=True)
class TaskRows:
    """The rows of one or several data sets for a run's task. Arrays have one entry per row, set after set."""

    config: RunConfig
    stores: tuple[Store, ...]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = field(default=())

    @property
    def limit(self) -> int:
        """Tokens after which a row is truncated; pretraining truncates none."""
        return ENDLESS if self.config.task is Task.PRETRAINING else self.config.max_length

    @cached_property
    def lengths(self) -> Integers:
        """Tokens of each row's longest part; 0 if a part is missing."""
        lengths = [store.lengths for store in self.stores]
        complete: Integers = reduce(np.minimum, lengths) > 0
        return np.where(complete, reduce(np.maximum, lengths), 0)

    @cached_property
    def first_trained(self) -> Integers:
        """The index of the token by which every part has a token with loss; -1 if a part has none."""
        everything = self.config.train_on_prompt or self.config.task is Task.PRETRAINING
        firsts = [store.first_trained_with(train_on_prompt=everything) for store in self._learning]
        missing = (reduce(np.minimum, firsts) < 0) | (self.lengths == 0)
        return np.where(missing, -1, reduce(np.maximum, firsts))

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """A hash of each row's tokens, to compare data sets."""
        return self.stores[0].hashes

    @property
    def ends(self) -> tuple[int, ...]:
        """The row numbers at which each data set ends."""
        return ends_of(self.stores[0])

    @property
    def empty_rows(self) -> int:
        return max(int(store.facts["empty_rows"]) for store in self.stores)

    @property
    def _learning(self) -> tuple[Store, ...]:
        """The stores whose tokens carry loss: all but an encoder's input."""
        return self.stores[1:] if self.config.task is Task.SEQ2SEQ else self.stores

    def view(self, rows: Integers) -> View:
        """Returns a view of some of the rows, truncated and labeled."""
        config, limit = self.config, self.config.max_length
        match config.task:
            case Task.SFT:
                return TokenView(self.stores[0], rows, limit, train_on_prompt=config.train_on_prompt)
            case Task.PRETRAINING:
                return ChunkView(self.stores[0], rows, limit)
            case Task.SEQ2SEQ:
                source, target = self.stores
                longest = config.max_target_length or limit
                return TargetView(
                    TokenView(source, rows, limit, train_on_prompt=True), _answer_view(target, rows, longest)
                )
            case Task.DPO | Task.ORPO | Task.REWARD:
                chosen, rejected = self.stores
                return PairView(_answer_view(chosen, rows, limit), _answer_view(rejected, rows, limit))
            case Task.KTO | Task.CLASSIFICATION:
                assert self.labels is not None
                untruncated = _answer_view(self.stores[0], rows, ENDLESS) if config.task is Task.KTO else None
                return LabelView(_answer_view(self.stores[0], rows, limit), self.labels, untruncated)


def _answer_view(store: Store, rows: Integers, limit: int) -> TokenView:
    return TokenView(store, rows, limit, train_on_prompt=False)


def open_rows(
    config: RunConfig,
    files: Sequence[DataFile],
    find: Callable[[DataFile, StoredText], TokenStore],
    classes: tuple[str, ...] | None = None,
) -> TaskRows:
    """Opens the rows of `files` for the run's task; `find` finds or makes the token store of a part.

    `classes` are the classes of the training data, if known.

    Raises:
        DataError: a row lacks a label, there are fewer than two classes, or a class is unknown.
    """
    stores = tuple(joined([find(file, part) for file in files]) for part in STORED_TEXTS[config.task])
    if config.task is Task.KTO:
        return TaskRows(config, stores, _answer_labels(files))
    if config.task is Task.CLASSIFICATION:
        labels, names = _classes(files, classes)
        return TaskRows(config, stores, labels, names)
    return TaskRows(config, stores)


def _answer_labels(files: Sequence[DataFile]) -> NDArray[np.int64]:
    """Returns 1 for a desirable answer, 0 for an undesirable one."""
    rows = read_files(files, unwanted=True)
    return np.array([_label(file, row, example) for _, file, row, _, example in rows], np.int64)


def _label(file: DataFile, row: int, example: Example | None) -> int:
    if example is None:
        return 0
    if example.label is None:
        fix = "Give every row a label, true or false, or choose another task."
        raise DataError("has no label for its answer.", fix, file=file.path.name, line=row + 1, field="label")
    return int(example.label)


def _classes(files: Sequence[DataFile], known: tuple[str, ...] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Returns each row's class as an index into the classes (-1 for a row without one), and the classes."""
    found = list(_class_names(files))
    if not known:
        try:
            check_classes([name for _, _, name in found], all_rows=True)
        except DataError as error:
            raise DataError(error.message, error.fix, file=files[0].path.name, field=error.field) from None
    classes = known or _ordered({name for _, _, name in found if name})
    if len(classes) < 2:
        message = f"has {len(classes)} classes: {', '.join(classes) or 'none'}."
        raise DataError(message, "Classification needs at least two.", file=files[0].path.name, field="label")
    place = {name: index for index, name in enumerate(classes)}
    for file, row, name in found:
        if name and name not in place:
            message = f"has the class {name!r}, which does not occur in the training data."
            fix = "Remove the row, or add rows of this class to the training data."
            raise DataError(message, fix, file=file.path.name, line=row + 1, field="label")
    return np.array([place.get(name, -1) for _, _, name in found], np.int64), classes


def _class_names(files: Sequence[DataFile]) -> Iterator[tuple[DataFile, int, str]]:
    for _, file, row, _, example in read_files(files, unwanted=True):
        yield file, row, example.answer.strip() if example else ""


def _ordered(names: set[str]) -> tuple[str, ...]:
    """Sorts class names, numbers by value: class 10 comes after class 9."""
    return tuple(sorted(names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)))

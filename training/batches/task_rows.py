"""The rows of a run's data as a task needs them: one or two token stores, and the labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from training.batches.views import ChunkView, LabelView, PairView, SampleView, TargetView, TokenView, View
from training.config.run_config import RunConfig
from training.config.task import StoredText, Task
from training.data.example import Example, check_classes
from training.data.rows import DataFile, read_files
from training.errors import DataError
from training.tokens.order import Integers
from training.tokens.run_rows import RowLengths, rows_of
from training.tokens.store import Store, TokenStore, ends_of, joined

Find = Callable[[DataFile, StoredText], TokenStore]
"""Finds or makes the token store of a part of a file's rows."""


@dataclass(frozen=True)
class TaskRows:
    """The rows of one or several data sets for a run's task. Arrays have one entry per row, set after set."""

    config: RunConfig
    stores: tuple[Store, ...]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = field(default=())

    @cached_property
    def tokens(self) -> RowLengths:
        """The tokens of each row and its first token with loss."""
        return rows_of(self.config, self.stores)

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

    def view(self, rows: Integers, *, trains: bool = True) -> View:
        """Returns a view of some of the rows, truncated and labeled; of prompts with all of their samples if it `trains`."""
        store, limit, prompts = self.stores[0], self.config.max_length, self.config.train_on_prompt
        match self.config.task:
            case Task.SFT:
                return TokenView(store, rows, limit, train_on_prompt=prompts)
            case Task.PRETRAINING:
                return ChunkView(store, rows, limit)
            case Task.SEQ2SEQ:
                longest = self.config.max_target_length or limit
                target = TokenView(self.stores[1], rows, longest, train_on_prompt=False)
                return TargetView(TokenView(store, rows, limit, train_on_prompt=True), target)
            case Task.DPO | Task.ORPO | Task.REWARD:
                chosen, rejected = (TokenView(part, rows, limit, train_on_prompt=False) for part in self.stores)
                return PairView(chosen, rejected)
            case Task.GRPO | Task.DISTILL:
                return SampleView(store, rows, limit, samples=self.config.samples_per_prompt if trains else 1)
            case Task.KTO | Task.CLASSIFICATION:
                assert self.labels is not None
                return LabelView(store, rows, limit, self.labels, whole=self.config.task.traits.labels_answers)


def open_rows(
    config: RunConfig,
    files: Sequence[DataFile],
    find: Find,
    classes: tuple[str, ...] | None = None,
) -> TaskRows:
    """Opens the rows of `files` for the run's task; `find` finds or makes the token store of a part.

    `classes` are the classes of the training data, if known.

    Raises:
        DataError: a row lacks a label, there are fewer than two classes, or a class is unknown.
    """
    stores = tuple(joined([find(file, part) for file in files]) for part in config.task.traits.texts)
    if config.task.traits.labels_answers:
        rows = read_files(files, unwanted=True)
        labels = [_answer_label(file, row, example) for _, file, row, _, example in rows]
        return TaskRows(config, stores, np.array(labels, np.int64))
    if config.task.traits.has_classes:
        return TaskRows(config, stores, *_classes(files, classes))
    return TaskRows(config, stores)


def _answer_label(file: DataFile, row: int, example: Example | None) -> int:
    """1 for a desirable answer, 0 for an undesirable one."""
    if example is None:
        return 0
    if example.label is None:
        fix = "Give every row a label, true or false, or choose another task."
        raise DataError("has no label for its answer.", fix, file=file.path.name, line=row + 1, field="label")
    return int(example.label)


def _classes(files: Sequence[DataFile], known: tuple[str, ...] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Returns each row's class as an index into the classes (-1 for a row without one), and the classes.

    They are sorted, numbers by value: class 10 comes after class 9.
    """
    rows = read_files(files, unwanted=True)
    named = [(file, row, example.answer.strip() if example else "") for _, file, row, _, example in rows]
    if not known:
        try:
            check_classes([name for _, _, name in named], all_rows=True)
        except DataError as error:
            raise DataError(error.message, error.fix, file=files[0].path.name, field=error.field) from None
    names = {name for _, _, name in named if name}
    classes = known or tuple(
        sorted(names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
    )
    index_of = {name: index for index, name in enumerate(classes)}
    for file, row, name in named:
        if name and name not in index_of:
            message = f"has the class {name!r}, which does not occur in the training data."
            fix = "Remove the row, or add rows of this class to the training data."
            raise DataError(message, fix, file=file.path.name, line=row + 1, field="label")
    return np.array([index_of.get(name, -1) for _, _, name in named], np.int64), classes

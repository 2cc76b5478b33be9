"""Which rows each rank takes and in which order, and the data sets of these rows: of held-out batches and of each item of a
training batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from training.batches.views import IGNORED, TokenList, View, rows_behind
from training.data.rows import DataRows
from training.tokens.order import Integers, Order, turns

SETS = "data_sets"
"""The entry of a training batch with the set of each item (token with loss, or row), of shape (items,)."""


@dataclass(frozen=True)
class Sets:
    """The names of data sets, and the indexes at which the rows of each end in a view."""

    names: tuple[str, ...]
    ends: tuple[int, ...]

    @property
    def several(self) -> bool:
        return len(self.names) > 1

    @property
    def counts(self) -> list[int]:
        """The rows (in pretraining: chunks) of each set."""
        return [int(count) for count in np.diff(self.ends, prepend=0)]

    def index(self, row: int) -> int:
        """The set of a row."""
        return int(np.searchsorted(self.ends, row, side="right"))


def sets_of(view: View | TokenList, numbered: DataRows) -> Sets:
    """Returns the data sets of a view's rows."""
    names = tuple(file.name for file in numbered.files)
    if isinstance(view, TokenList) or len(names) == 1:
        return Sets(names[:1], (view.num_rows,))
    return Sets(names, tuple(int(end) for end in np.searchsorted(rows_behind(view), numbered.ends)))


class HeldOutBatches(Sampler[list[int]]):
    """Yields one rank's batches of the held-out rows, in order; consecutive batches go to consecutive ranks.

    Each batch has rows of one data set. All ranks get the same number of batches; a rank without one at the end (`ends_empty`)
    gets the first row again, which must have weight 0.
    """

    def __init__(self, sets: Sets, size: int, rank: int = 0, world: int = 1) -> None:
        starts = (0, *sets.ends[:-1])
        self._batches = [
            (number, range(first, min(first + size, end)))
            for number, (start, end) in enumerate(zip(starts, sets.ends, strict=True))
            for first in range(start, end, size)
        ]
        self._rank, self._world = rank, world

    @property
    def ends_empty(self) -> bool:
        """True if no rows are left for this rank in its last batch."""
        return (len(self) - 1) * self._world + self._rank >= len(self._batches)

    def set_of(self, turn: int) -> int:
        """The data set of this rank's batch number `turn`, from 0."""
        return self._batch(turn)[0]

    def rows(self, turn: int) -> list[int]:
        """The rows of this rank's batch number `turn`; empty where none is left."""
        return list(self._batch(turn)[1])

    def __len__(self) -> int:
        return ceil(len(self._batches) / self._world)

    def __iter__(self) -> Iterator[list[int]]:
        for turn in range(len(self)):
            yield self.rows(turn) or [0]

    def _batch(self, turn: int) -> tuple[int, range]:
        index = turn * self._world + self._rank
        return self._batches[index] if index < len(self._batches) else (0, range(0))


def single_rows(items: list[Any]) -> list[Any]:
    """The rows of a batch of rows, or of packs of rows."""
    return [row for item in items for row in (item if isinstance(item, list) else [item])]


def item_sets(rows: list[Any], items: Callable[[Any], int]) -> dict[str, torch.Tensor]:
    """Returns the entry SETS of a batch of rows, or of packs of rows; nothing if they are from one data set.

    `items` counts the items of a row. They must be in the order of the rows, as in the labels of every layout.
    """
    flat = single_rows(rows)
    if SETS not in flat[0]:
        return {}
    return {SETS: torch.from_numpy(np.repeat([row[SETS] for row in flat], [items(row) for row in flat]))}


def count_loss_tokens(labels: NDArray[Any]) -> int:
    """The number of tokens with loss."""
    return int(np.count_nonzero(labels != IGNORED))


class TokenDataset(Dataset[Any]):
    """A view as a torch data set of rows, or of packs of rows if its `order` yields packs.

    With `names_sets` and several data sets, each row also has the entry SETS, the number of its set.
    """

    def __init__(
        self, view: View | TokenList, sets: Sets, order: Order | None = None, *, names_sets: bool = False
    ) -> None:
        self._view, self.sets, self.order = view, sets, order
        self._names_sets = names_sets and sets.several

    def __len__(self) -> int:
        return len(self.order) if self.order else self._view.num_rows

    def __getitem__(self, index: int | Integers) -> Any:
        """Returns a row, or the list of rows of a pack."""
        return [self._row(int(row)) for row in index] if np.ndim(index) else self._row(int(index))  # type: ignore[union-attr]

    def _row(self, index: int) -> Any:
        row = self._view[index]
        return row | {SETS: self.sets.index(index)} if self._names_sets else row


class RankBatches(Sampler[list[Any]]):
    """Yields one rank's micro batches of an epoch; consecutive micro batches go to consecutive ranks.

    All ranks get the same number of micro batches. A rank without rows in the last ones (`empty_at_end`) gets the first row or
    pack of the epoch again, which must have weight 0.

    With several `iterations` the micro batches of a step, as many as `accumulation`, come that many times in a row; so that this
    is also true of the last step of an epoch, it is filled with micro batches without rows.
    """

    def __init__(
        self,
        order: Order,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        *,
        accumulation: int = 1,
        iterations: int = 1,
    ) -> None:
        self.order, self._size, self._rank, self._world = order, micro_batch, rank, world
        self._accumulation, self.iterations = accumulation, iterations
        self.epoch = 0

    @property
    def units(self) -> int:
        """Rows or packs in an epoch."""
        return len(self.order)

    @property
    def empty_at_end(self) -> int:
        """The number of this rank's micro batches in the last step for which no rows are left."""
        return self._turns - ceil(max(ceil(len(self.order) / self._size) - self._rank, 0) / self._world)

    def __len__(self) -> int:
        return self._turns * self.iterations

    def __iter__(self) -> Iterator[list[Any]]:
        units = self.order.epoch(self.epoch)
        together = self._accumulation if self.iterations > 1 else self._turns
        for first in range(0, self._turns, together):
            for turn in list(range(first, first + together)) * self.iterations:
                start = self._start(turn)
                yield list(units[start : start + self._size]) or [units[0]]

    @property
    def _turns(self) -> int:
        """Micro batches of an epoch, each counted once."""
        count = turns(len(self.order), self._size, self._world)
        return count if self.iterations == 1 else ceil(count / self._accumulation) * self._accumulation

    def _start(self, turn: int) -> int:
        return (turn * self._world + self._rank) * self._size

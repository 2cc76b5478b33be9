"""Data sets and samplers for torch: which rows each rank takes, and in which order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from training.batches.sets import SETS, Sets
from training.batches.views import Rows
from training.tokens.order import Integers, Order, turns


class TokenDataset(Dataset[Any]):
    """A view as a torch data set of rows, or of packs of rows if its `order` yields packs.

    With `names_sets` and several data sets, each row also has the entry SETS, the number of its set.
    """

    def __init__(self, view: Rows, sets: Sets, order: Order | None = None, *, names_sets: bool = False) -> None:
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

    All ranks get the same number of micro batches. A rank without rows in the last one (`ends_empty`) gets the first row or
    pack of the epoch again, which must have weight 0.
    """

    def __init__(self, order: Order, micro_batch: int, rank: int = 0, world: int = 1) -> None:
        self._order, self._size, self._rank, self._world = order, micro_batch, rank, world
        self.epoch = 0

    @property
    def units(self) -> int:
        """Rows or packs in an epoch."""
        return len(self._order)

    @property
    def ends_empty(self) -> bool:
        """True if no rows are left for this rank in its last micro batch."""
        return self._start(len(self) - 1) >= len(self._order)

    def __len__(self) -> int:
        return turns(len(self._order), self._size, self._world)

    def __iter__(self) -> Iterator[list[Any]]:
        units = self._order.epoch(self.epoch)
        for turn in range(len(self)):
            start = self._start(turn)
            yield list(units[start : start + self._size]) or [units[0]]

    def _start(self, turn: int) -> int:
        return (turn * self._world + self._rank) * self._size

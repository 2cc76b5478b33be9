"""The order of rows in a run, and the step and rank of each row. Only numpy, since pages use it too.

The order depends only on seed and epoch, so it is known before the run starts and does not depend on strategy or number of
processes. Consecutive batches go to consecutive ranks. The last batches of an epoch have fewer rows or none: no row occurs twice
in an epoch, so its last step has the same rows for any number of ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import ceil
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_MAX_CACHED_ROWS = 2_000_000  # orders of more rows are not cached; these take 16 MB each
_FEW = 64  # up to this batch size a maximum over columns is faster than np.maximum.reduceat
_BATCHES_SORTED = 50  # rows are sorted by length within this many batches
_MOST_EPOCHS = 64  # searched for the longest batch of a mixture
_GROUPS = 5  # differs from the other seeds
PAD_MULTIPLE = 8  # batches are padded to a multiple of this many tokens, for efficient GPU kernels
Integers = NDArray[Any]


@dataclass(frozen=True)
class WorstBatch:
    """A batch and its place in the run: epoch and rank from 0, step and micro step from 1.

    `rows` are indexes into the lengths, `longest` is the length of the longest row, `tokens` the size of the padded batch.
    """

    epoch: int
    step: int
    rank: int
    micro: int
    rows: list[int]
    longest: int
    tokens: int


def epoch_order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The rows 0 to rows - 1 in the order of an epoch (from 0); read-only."""
    return _cached_order(rows, seed, epoch) if rows <= _MAX_CACHED_ROWS else _order(rows, seed, epoch)


def _order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(rows)
    order.flags.writeable = False
    return order


# Trying several maximum lengths needs the same orders again.
_cached_order = lru_cache(maxsize=4)(_order)


class Order(Protocol):
    """The order of the units of an epoch: rows, or packs of rows."""

    def __len__(self) -> int: ...

    def epoch(self, number: int) -> Sequence[Any] | Integers:
        """All units in the order of an epoch (from 0)."""


@dataclass(frozen=True)
class Shuffled:
    """Rows in random order."""

    rows: int
    seed: int

    def __len__(self) -> int:
        return self.rows

    def epoch(self, number: int) -> Integers:
        return epoch_order(self.rows, self.seed, number)


@dataclass(frozen=True)
class ByLength:
    """Batches of rows of similar length, in random order. `together` is the global batch size, so the order does not depend on
    the micro batch size."""

    lengths: Integers
    seed: int
    together: int
    base: Order | None = None
    """The order of the rows before they are sorted; default: shuffled."""

    def __len__(self) -> int:
        return len(self.base) if self.base else len(self.lengths)

    @property
    def covering(self) -> int:
        """The number of epochs after which every row was used."""
        return covering(self.base)

    def epoch(self, number: int) -> Integers:
        base = self.base or Shuffled(len(self.lengths), self.seed)
        shuffled = np.asarray(base.epoch(number))
        span = np.arange(len(shuffled)) // (_BATCHES_SORTED * self.together)
        order = shuffled[np.lexsort((-self.lengths[shuffled], span))]
        whole = len(order) // self.together * self.together
        batches = order[:whole].reshape(-1, self.together)
        generator = np.random.Generator(np.random.PCG64([self.seed, number, _GROUPS]))
        return np.concatenate([generator.permutation(batches).ravel(), order[whole:]])


@dataclass(frozen=True)
class Repeated:
    """Each unit of an order `times` in succession: unit u becomes u * times, u * times + 1 and so on."""

    order: Order
    times: int

    def __len__(self) -> int:
        return len(self.order) * self.times

    @property
    def covering(self) -> int:
        """The number of epochs after which every row was used."""
        return covering(self.order)

    def epoch(self, number: int) -> Integers:
        units = np.asarray(self.order.epoch(number))
        copies: Integers = (units[:, None] * self.times + np.arange(self.times)).ravel()
        return copies


def covering(order: Order | None) -> int:
    """The number of epochs after which every row was used: 1, or more if each epoch takes a part of a mixture."""
    return int(getattr(order, "covering", 1))


def turns(units: int, micro_batch: int, world: int) -> int:
    """Micro batches per rank in one pass over `units` rows or packs."""
    return ceil(ceil(units / micro_batch) / world)


def steps_per_epoch(rows: int, micro_batch: int, accumulation: int, world: int, iterations: int = 1) -> int:
    """Optimizer steps of one pass over the rows, each global batch trained on `iterations` times in a row; the last may have fewer
    micro steps than the others."""
    return max(1, ceil(turns(rows, micro_batch, world) / accumulation)) * iterations


def place_of(position: int, micro_batch: int, accumulation: int, world: int) -> tuple[int, int, int]:
    """(step, rank, micro step) of the row at `position` in an epoch; steps and micro steps from 1."""
    turn, rank = divmod(position // micro_batch, world)
    step, micro = divmod(turn, accumulation)
    return step + 1, rank, micro + 1


def batches_of_ranks(
    order: Order, *, step: int, micro: int, micro_batch: int, accumulation: int, world: int, iterations: int = 1
) -> list[list[int]]:
    """The rows of each rank at a step of the run and a micro step, both from 1; the inverse of `place_of`. The list of a rank
    without a batch at the end of an epoch is empty."""
    epoch, within = divmod(step - 1, steps_per_epoch(len(order), micro_batch, accumulation, world, iterations))
    units = order.epoch(epoch)
    first = (within // iterations * accumulation + micro - 1) * world * micro_batch
    indexes = np.arange(len(units))[first : first + world * micro_batch]
    shares = [indexes[rank * micro_batch : (rank + 1) * micro_batch] for rank in range(world)]
    return [[int(row) for unit in share for row in np.atleast_1d(units[unit])] for share in shares]


def worst_batches(
    lengths: Integers,
    *,
    micro_batch: int,
    accumulation: int,
    world: int,
    seed: int,
    epochs: float,
    max_steps: int | None = None,
    count: int = 10,
    order: Order | None = None,
    pads: bool = True,
    first: tuple[bool, bool] | None = None,
    iterations: int = 1,
) -> list[WorstBatch]:
    """The `count` longest batches of a run, longest first; of equally long ones the earliest.

    `lengths` are those of the training rows, in file order and truncated. `order` yields rows or packs; default: shuffled rows.
    If `pads` is False, the length of a batch is the sum of its rows. `first` takes only batches of the run's first step or only
    of later ones, and only of the first micro steps or only of later ones. A global batch is in `iterations` steps in a row.
    """
    if not len(lengths):
        return []
    order = order or Shuffled(len(lengths), seed)
    per_epoch = steps_per_epoch(len(order), micro_batch, accumulation, world, iterations)
    total = max_steps or ceil(epochs * per_epoch)
    again = first is not None and not first[0] and iterations > 1  # the first global batch is in the second step, too
    candidates: list[WorstBatch] = []
    # Every epoch contains the longest row, so where rows are padded the first `count` epochs are enough; an epoch of a mixture may
    # leave it out. A sum of rows is another one in each epoch.
    epochs = max(count, min(covering(order), _MOST_EPOCHS) if pads and first is None else _MOST_EPOCHS)
    for epoch in range(min(ceil(total / per_epoch), epochs)):
        units, sizes = _units(order, epoch, lengths)
        batches = ceil((total - epoch * per_epoch) / iterations)
        in_run = np.arange(len(units))[: batches * micro_batch * accumulation * world]
        weights, tokens = _weights_of_batches(sizes[in_run], micro_batch, pads=pads)
        if first is not None:
            turns = np.arange(len(weights)) // world
            early = turns < accumulation if epoch == 0 else np.zeros(len(turns), bool)
            taken = ((early == first[0]) | again) & ((turns % accumulation == 0) == first[1])
            weights = np.where(taken, weights, 0)
        for batch in _highest(weights, count):
            if first is not None and not taken[batch]:
                continue
            step, rank, micro = place_of(int(batch) * micro_batch, micro_batch, accumulation, world)
            batch_units = [units[unit] for unit in in_run[batch * micro_batch : (batch + 1) * micro_batch]]
            rows = np.concatenate([np.atleast_1d(unit) for unit in batch_units]).tolist()
            where = (epoch, epoch * per_epoch + (step - 1) * iterations + 1 + int(again), rank, micro)
            candidates.append(
                WorstBatch(*where, rows=rows, longest=int(lengths[rows].max()), tokens=int(tokens[batch]))
            )

    def place(batch: WorstBatch) -> tuple[int, int, int, int]:
        return -(batch.longest if pads else batch.tokens), batch.step, batch.micro, batch.rank

    return sorted(candidates, key=place)[:count]


def _units(order: Order, epoch: int, lengths: Integers) -> tuple[Any, Integers]:
    """The units of an epoch, and the tokens of each."""
    units = order.epoch(epoch)
    if isinstance(units, np.ndarray):
        return units, lengths[units]
    return units, np.array([lengths[rows].sum() for rows in units])


def _weights_of_batches(sizes: Integers, micro_batch: int, *, pads: bool) -> tuple[Integers, Integers]:
    """The length of each batch (its longest row, or with padding off the sum of its rows), and its tokens."""
    starts = np.arange(0, len(sizes), micro_batch)
    if not pads:
        together: Integers = np.add.reduceat(sizes, starts)
        return together, together
    longest = longest_of_batches(sizes, micro_batch)
    rows = np.minimum(micro_batch, len(sizes) - starts)
    return longest, rows * (-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE)


def longest_of_batches(lengths: Integers, micro_batch: int) -> Integers:
    """The length of the longest row of each batch; `lengths` are in training order."""
    whole = len(lengths) // micro_batch * micro_batch
    if micro_batch > _FEW or not whole:
        return np.maximum.reduceat(lengths, np.arange(0, len(lengths), micro_batch))
    batches = lengths[:whole].reshape(-1, micro_batch)
    longest: Integers = reduce(np.maximum, batches.T)
    return longest if whole == len(lengths) else np.append(longest, lengths[whole:].max())


def padded(length: int) -> int:
    """`length` rounded up to PAD_MULTIPLE: the length of a batch whose longest row has `length` tokens."""
    return -(-length // PAD_MULTIPLE) * PAD_MULTIPLE


def _highest(values: Integers, count: int) -> Integers:
    """Indexes of the highest values; of equal ones the first."""
    if len(values) <= count:
        return np.arange(len(values))
    bound = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > bound)
    return np.concatenate([above, np.flatnonzero(values == bound)[: count - len(above)]])

"""The order in which a run sees its rows, and so where in the run each row comes. numpy alone: the pages ask it too.

A run's order hangs on its seed and the epoch and on nothing else, so it is the same on every strategy and every number of
processes, and it is known before the run begins. Batch after batch goes to rank after rank. The last batches of an epoch have
fewer rows or none: no row comes twice in an epoch, so that its last step is the same however many ranks share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import ceil
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_KEPT_ROWS = 2_000_000  # orders of so many rows are remembered: 16 MB each
_FEW = 64  # rows in a batch up to which it is quicker to go through the batches' first, second, ... rows
_BATCHES_SORTED = 50  # batches whose rows are brought together by length
_GROUPS = 5  # a number apart from the other orders of a seed
PAD_MULTIPLE = 8  # batches are padded to a multiple of this many tokens, which GPUs like
Integers = NDArray[Any]


@dataclass(frozen=True)
class WorstBatch:
    """A batch by its place in the run: epoch and rank from 0, step and micro step from 1, as the progress bar counts.

    `rows` are indices into the lengths given, `longest` the longest of them, `tokens` what the padded batch holds.
    """

    epoch: int
    step: int
    rank: int
    micro: int
    rows: list[int]
    longest: int
    tokens: int


def epoch_order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The rows 0 to rows - 1 in the order of an epoch (from 0); not to be written to."""
    return _kept_order(rows, seed, epoch) if rows <= _KEPT_ROWS else _order(rows, seed, epoch)


def _order(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(rows)
    order.flags.writeable = False
    return order


# Whoever tries one maximum length after another asks for the same orders again.
_kept_order = lru_cache(maxsize=4)(_order)


class Order(Protocol):
    """What an epoch hands out one by one: rows, or packs of rows."""

    def __len__(self) -> int: ...

    def epoch(self, number: int) -> Sequence[Any] | Integers:
        """All of them, in the order of an epoch from 0."""


@dataclass(frozen=True)
class Shuffled:
    """Rows at random."""

    rows: int
    seed: int

    def __len__(self) -> int:
        return self.rows

    def epoch(self, number: int) -> Integers:
        return epoch_order(self.rows, self.seed, number)


@dataclass(frozen=True)
class ByLength:
    """Rows at random, those of like length in one batch. `together` rows make a step, so that the order stays the same where
    the micro batch becomes smaller."""

    lengths: Integers
    seed: int
    together: int

    def __len__(self) -> int:
        return len(self.lengths)

    def epoch(self, number: int) -> Integers:
        drawn = epoch_order(len(self.lengths), self.seed, number)
        span = np.arange(len(drawn)) // (_BATCHES_SORTED * self.together)
        order = drawn[np.lexsort((-self.lengths[drawn], span))]
        whole = len(order) // self.together * self.together
        batches = order[:whole].reshape(-1, self.together)
        generator = np.random.Generator(np.random.PCG64([self.seed, number, _GROUPS]))
        return np.concatenate([generator.permutation(batches).ravel(), order[whole:]])


def turns(units: int, micro_batch: int, world: int) -> int:
    """Micro batches that each rank takes in one pass over so many rows or packs."""
    return ceil(ceil(units / micro_batch) / world)


def steps_per_epoch(rows: int, micro_batch: int, accumulation: int, world: int) -> int:
    """Optimizer steps of one pass over the rows; the last may have fewer micro steps than the others."""
    return max(1, ceil(turns(rows, micro_batch, world) / accumulation))


def place_of(position: int, micro_batch: int, accumulation: int, world: int) -> tuple[int, int, int]:
    """(step, rank, micro step) at which the row at `position` of an epoch's order comes; steps and micro steps from 1."""
    turn, rank = divmod(position // micro_batch, world)
    step, micro = divmod(turn, accumulation)
    return step + 1, rank, micro + 1


def batches_of_ranks(
    order: Order, *, step: int, micro: int, micro_batch: int, accumulation: int, world: int
) -> list[list[int]]:
    """The rows of every rank at a step of the run and a micro step, both from 1: the inverse of `place_of`. A rank that has no
    batch left at the end of an epoch has no rows."""
    epoch, within = divmod(step - 1, steps_per_epoch(len(order), micro_batch, accumulation, world))
    units = order.epoch(epoch)
    first = (within * accumulation + micro - 1) * world * micro_batch
    places = np.arange(len(units))[first : first + world * micro_batch]
    shares = [places[rank * micro_batch : (rank + 1) * micro_batch] for rank in range(world)]
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
) -> list[WorstBatch]:
    """The `count` longest batches of a run, the longest first and of equals the earliest.

    `lengths` are those of the rows that train, in the order of their file and cut to the maximum length. `order` hands out rows
    or packs of them, shuffled where it is not given. Where nothing `pads`, a batch is as long as its rows together.
    """
    if not len(lengths):
        return []
    order = order or Shuffled(len(lengths), seed)
    per_epoch = steps_per_epoch(len(order), micro_batch, accumulation, world)
    total = max_steps or ceil(epochs * per_epoch)
    found: list[WorstBatch] = []
    # Every epoch has the longest row in it, so that no more epochs than `count` can matter.
    for epoch in range(min(ceil(total / per_epoch), count)):
        units, sizes = _units(order, epoch, lengths)
        begun = np.arange(len(units))[: (total - epoch * per_epoch) * micro_batch * accumulation * world]
        weights, tokens = _weights_of_batches(sizes[begun], micro_batch, pads=pads)
        for batch in _highest(weights, count):
            step, rank, micro = place_of(int(batch) * micro_batch, micro_batch, accumulation, world)
            mine = [units[unit] for unit in begun[batch * micro_batch : (batch + 1) * micro_batch]]
            rows = np.concatenate([np.atleast_1d(unit) for unit in mine]).tolist()
            where = (epoch, epoch * per_epoch + step, rank, micro)
            found.append(WorstBatch(*where, rows=rows, longest=int(lengths[rows].max()), tokens=int(tokens[batch])))

    def place(batch: WorstBatch) -> tuple[int, int, int, int]:
        return -(batch.longest if pads else batch.tokens), batch.step, batch.micro, batch.rank

    return sorted(found, key=place)[:count]


def _units(order: Order, epoch: int, lengths: Integers) -> tuple[Any, Integers]:
    """What an epoch hands out, and the tokens of each."""
    units = order.epoch(epoch)
    if isinstance(units, np.ndarray):
        return units, lengths[units]
    return units, np.array([lengths[rows].sum() for rows in units])


def _weights_of_batches(sizes: Integers, micro_batch: int, *, pads: bool) -> tuple[Integers, Integers]:
    """What makes each batch long, its longest row or all of them, and the tokens it holds."""
    starts = np.arange(0, len(sizes), micro_batch)
    if not pads:
        together: Integers = np.add.reduceat(sizes, starts)
        return together, together
    longest = longest_of_batches(sizes, micro_batch)
    rows = np.minimum(micro_batch, len(sizes) - starts)
    return longest, rows * (-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE)


def longest_of_batches(lengths: Integers, micro_batch: int) -> Integers:
    """The longest row of each batch of `lengths`, which are in the order of training."""
    whole = len(lengths) // micro_batch * micro_batch
    if micro_batch > _FEW or not whole:
        return np.maximum.reduceat(lengths, np.arange(0, len(lengths), micro_batch))
    batches = lengths[:whole].reshape(-1, micro_batch)
    longest: Integers = reduce(np.maximum, batches.T)
    return longest if whole == len(lengths) else np.append(longest, lengths[whole:].max())


def padded(length: int) -> int:
    """The length a batch has whose longest row has that length."""
    return -(-length // PAD_MULTIPLE) * PAD_MULTIPLE


def _highest(values: Integers, count: int) -> Integers:
    """Indices of the highest values, of equals the first."""
    if len(values) <= count:
        return np.arange(len(values))
    bound = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > bound)
    return np.concatenate([above, np.flatnonzero(values == bound)[: count - len(above)]])

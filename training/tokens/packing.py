"""The order in which a run takes packed rows, and rows of several data sets. Only numpy, since pages use it too.

Packing puts rows by best fit into sequences of the maximum length. The rows are already truncated to that length, so each fits
into a pack. The lengths in each pack are computed once; the seed decides in each epoch which rows of a length go where. So every
epoch has the same number of packs, and the number of steps is known in advance.

In a mixture each set is an endless sequence of passes, each a new permutation of its rows. Row k of a set with weight w is due at
the time m_k / w, where m_k is the amount of the set (rows or tokens) up to the middle of that row. Training takes the rows of all
sets in the order of their times, so at any time the amount taken from a set differs from its share by at most half a row. An epoch
is a part of this sequence with a fixed number of rows; the next one continues where it ended, so a set that is larger than its
share shows other rows in each epoch, and shares also hold across epochs. Within a step the rows are shuffled, which spreads each
set over the ranks. The sequence depends only on seed, weights and rows, so a resumed run continues it, on any number of ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.config.choices import BatchOrder, MixBy, MixUntil, Packing
from training.config.run_config import RunConfig
from training.errors import DataError
from training.tokens.order import ByLength, Integers, Order, Repeated, Shuffled, epoch_order

_MIX = 6  # differs from the other seeds (order.py, packing.py, selection.py, training/batches/streaming.py)
_SEEDS = 2**32
_MOST_ROWS = 200_000_000  # in an epoch
_NEXT_SEED = 0x9E3779B1  # two sets with equally many rows get different permutations
_PACKS = 4  # differs from the other seeds (order.py, selection.py, training/batches/streaming.py)


@dataclass(frozen=True)
class PackedPart:
    """One set of a mixture: `order` yields its rows, or packs of them, as indexes that begin at `first`."""

    order: Order
    first: int
    weight: float


@dataclass(frozen=True)
class _Pass:
    """One pass over a set: its units, and the time at which each is due."""

    units: Any
    times: NDArray[np.float64]


class Mixed:
    """The order of a mixture. `sizes` are the amounts of all rows, 1 each to mix by rows, their tokens to mix by tokens;
    `together` is the number of units of a step.

    Raises:
        DataError: an epoch has too many rows, because a set has a very small weight.
    """

    def __init__(self, parts: Sequence[PackedPart], sizes: Integers, seed: int, together: int, until: MixUntil) -> None:
        self._parts, self._sizes, self._seed, self._together = parts, sizes.astype(np.float64), seed, together
        self._passes: dict[tuple[int, int], _Pass] = {}
        ends = [part.first for part in parts[1:]] + [len(sizes)]
        totals = [
            float(self._sizes[part.first : end].sum()) for part, end in zip(parts, ends, strict=True)
        ]  # the same in every pass
        self._durations = [total / part.weight for total, part in zip(totals, parts, strict=True)]
        first = until is MixUntil.FIRST_EXHAUSTED
        self._duration = min(self._durations) if first else max(self._durations)
        self._length = max(1, sum(self._taken(number, self._duration) for number in range(len(parts))))
        if self._length > _MOST_ROWS:
            fix = "Raise the smallest weights, or set mix_until to first_exhausted."
            raise DataError(f"with these weights has {self._length:,} rows in an epoch.", fix, field="data")

    def __len__(self) -> int:
        return self._length

    @property
    def covering(self) -> int:
        """The number of epochs after which every row was used."""
        return int(np.ceil(max(self._durations) / self._duration)) + 1

    def epoch(self, number: int) -> Any:
        """The units of an epoch (from 0), in training order."""
        start, end = number * self._length, (number + 1) * self._length
        before, after = self._time_of(start, above=False), self._time_of(end, above=True)
        low = [self._taken(part, before) for part in range(len(self._parts))]
        high = [self._taken(part, after) for part in range(len(self._parts))]
        found = [self._between(part, *span) for part, span in enumerate(zip(low, high, strict=True))]
        # Passes before this epoch are not needed again.
        self._passes = {
            (part, number): known
            for (part, number), known in self._passes.items()
            if number >= low[part] // len(self._parts[part].order)
        }
        times = np.concatenate([times for _, times in found])
        due = np.argsort(times, kind="stable")[start - sum(low) :][: self._length]
        generator = np.random.Generator(np.random.PCG64([self._seed, number, _MIX]))
        mixed = due[
            np.lexsort((generator.random(self._length), np.arange(self._length) // self._together))
        ]  # within each step
        if all(isinstance(units, np.ndarray) for units, _ in found):
            return np.concatenate([units for units, _ in found])[mixed]
        packs = [pack for units, _ in found for pack in units]
        return [packs[index] for index in mixed]

    def _taken(self, part: int, time: float) -> int:
        """The number of units of a set that are due up to a time."""
        order, duration = self._parts[part].order, self._durations[part]
        number = max(0, int(time / duration))
        return number * len(order) + int(np.searchsorted(self._pass(part, number).times, time, side="right"))

    def _between(self, part: int, low: int, high: int) -> tuple[Any, NDArray[np.float64]]:
        """The units low to high - 1 of a set's sequence, and their times."""
        count = len(self._parts[part].order)
        numbers = range(low // count, max(low, high - 1) // count + 1)
        passes = [self._pass(part, number) for number in numbers]
        taken = slice(low - numbers[0] * count, high - numbers[0] * count)
        times = np.concatenate([one.times for one in passes])[taken]
        if isinstance(passes[0].units, np.ndarray):
            return np.concatenate([one.units for one in passes])[taken], times
        return [unit for one in passes for unit in one.units][taken], times

    def _pass(self, part: int, number: int) -> _Pass:
        known = self._passes.get((part, number))
        if known is None:
            mine = self._parts[part]
            units = mine.order.epoch(number)
            if isinstance(units, np.ndarray):
                units = units + mine.first
                amounts = self._sizes[units]
            else:
                units = [pack + mine.first for pack in units]
                amounts = np.array([self._sizes[pack].sum() for pack in units])
            middles = np.cumsum(amounts) - amounts / 2
            known = _Pass(units, number * self._durations[part] + middles / mine.weight)
            self._passes[part, number] = known
        return known

    def _time_of(self, position: int, *, above: bool) -> float:
        """A time, close to that of a position in the sequence, up to which at most (or with `above` at least) so many units
        are due."""

        def count(time: float) -> int:
            return sum(self._taken(part, time) for part in range(len(self._parts)))

        estimate, step = position / self._length * self._duration, self._duration / 64
        low, high = estimate, estimate
        while low > 0 and count(low) > position:
            low, step = max(0.0, low - step), step * 2
        while count(high) < position:
            high, step = high + step, step * 2
        return high if above else low


def mixture(
    order_of_set: Callable[[Integers, int], Order],
    lengths: Integers,
    ends: Sequence[int],
    weights: Sequence[float],
    *,
    by_tokens: bool,
    seed: int,
    together: int,
    until: MixUntil,
) -> Mixed:
    """The order of a mixture of rows with these `lengths` in tokens, set after set; `ends` are the indexes at which each ends.

    `order_of_set` makes the order of a set's passes from the lengths of its rows and a seed.
    """
    total = sum(weights)
    starts = [0, *ends[:-1]]
    parts = [
        PackedPart(order_of_set(lengths[start:end], (seed + number * _NEXT_SEED) % _SEEDS), start, weight / total)
        for number, (start, end, weight) in enumerate(zip(starts, ends, weights, strict=True))
    ]
    return Mixed(parts, lengths if by_tokens else np.ones(len(lengths)), seed, together, until)


def best_fit(lengths: Integers, room: int) -> NDArray[np.int64]:
    """The pack of each row, from 0. `lengths` must be descending; each row goes into the fullest pack with enough room."""
    packs: list[list[int]] = [[] for _ in range(room + 1)]  # by remaining room
    rooms = opened = 0  # bit n of rooms is set if there are packs with room n
    pack_of = np.empty(len(lengths), np.int64)
    for place, size in enumerate(lengths.tolist()):
        if fitting := rooms >> size:
            space = size + (fitting & -fitting).bit_length() - 1
            pack = packs[space].pop()
            rooms ^= 0 if packs[space] else 1 << space
        else:
            space, pack, opened = room, opened, opened + 1
        pack_of[place] = pack
        packs[space - size].append(pack)
        rooms |= 1 << (space - size)
    return pack_of


class Packs:
    """The packs of each epoch, in a different order each time."""

    def __init__(self, lengths: Integers, room: int, seed: int) -> None:
        self._lengths, self._seed = lengths, seed
        pack_of = best_fit(np.sort(lengths)[::-1], room)
        # Indexes into the rows sorted by length, grouped by pack.
        self._places = np.argsort(pack_of, kind="stable")
        self._ends = np.cumsum(np.bincount(pack_of))

    def __len__(self) -> int:
        return len(self._ends)

    def epoch(self, number: int) -> list[Integers]:
        """The rows of each pack, in training order."""
        shuffled = epoch_order(len(self._lengths), self._seed, number)
        by_length = shuffled[np.argsort(-self._lengths[shuffled], kind="stable")]
        packs = np.split(by_length[self._places], self._ends[:-1])
        order = np.random.Generator(np.random.PCG64([self._seed, number, _PACKS])).permutation(len(packs))
        return [packs[pack] for pack in order]


def order_of(config: RunConfig, lengths: Integers, ends: Sequence[int] = ()) -> Order | None:
    """The order of rows with these truncated lengths; None if they are only shuffled.

    `ends` are the indexes at which the rows of each of several data sets end. Samples of a prompt stay together.
    """
    if config.task.traits.samples:
        each = config.samples_per_prompt
        prompts = order_of_rows(config, lengths[::each], [end // each for end in ends])
        return Repeated(prompts or Shuffled(len(lengths) // each, config.seed), each)
    return order_of_rows(config, lengths, ends)


def order_of_rows(config: RunConfig, lengths: Integers, ends: Sequence[int]) -> Order | None:
    """The order of rows, or of prompts."""
    if config.mixes and len(ends) > 1:
        return _mixture(config, lengths, ends)
    if config.packing is Packing.PACKED:
        return Packs(lengths, config.max_length, config.seed)
    if config.batch_order is BatchOrder.BY_LENGTH:
        return ByLength(lengths, config.seed, config.global_batch_size)
    return None


def _mixture(config: RunConfig, lengths: Integers, ends: Sequence[int]) -> Order:
    """Mixed rows, or packs of rows of one data set each."""

    def order_of_set(mine: Integers, seed: int) -> Order:
        packed = config.packing is Packing.PACKED
        return Packs(mine, config.max_length, seed) if packed else Shuffled(len(mine), seed)

    mixed = mixture(
        order_of_set,
        lengths,
        ends,
        [source.weight or 1.0 for source in config.sources],
        by_tokens=config.mix_by is MixBy.TOKENS,
        seed=config.seed,
        together=config.global_batch_size,
        until=config.mix_until,
    )
    by_length = config.batch_order is BatchOrder.BY_LENGTH and config.packing is not Packing.PACKED
    return ByLength(lengths, config.seed, config.global_batch_size, mixed) if by_length else mixed

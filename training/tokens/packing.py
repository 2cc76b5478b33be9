"""Packs rows by best fit into sequences of the maximum length. Only numpy.

The rows are already truncated to that length, so each fits into a pack. The lengths in each pack are computed once; the seed
decides in each epoch which rows of a length go where. So every epoch has the same number of packs, and the number of steps is
known in advance.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training.config.choices import BatchOrder, MixBy, Packing
from training.config.run_config import RunConfig
from training.tokens.mixture import mixture
from training.tokens.order import ByLength, Integers, Order, Shuffled, epoch_order

_PACKS = 4  # differs from the other seeds (order.py, selection.py, training/batches/streaming.py)


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

    `ends` are the indexes at which the rows of each of several data sets end.
    """
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

"""Rows packed by best fit into sequences of the maximum length. numpy alone.

The rows are cut to that length already, so that each fits whole into a pack. Which lengths come together follows from the
lengths alone and is found once; which of the rows of a length comes where is drawn anew each epoch, by the seed. Every epoch
therefore has as many packs as any other, and a run knows its steps before it begins.
"""

import numpy as np
from numpy.typing import NDArray

from training.config import BatchOrder, Packing, RunConfig
from training.order import ByLength, Integers, Order, epoch_order

_PACKS = 4  # a number apart from the other orders of a seed (training/order.py, training/selection.py, training/streaming.py)


def best_fit(lengths: Integers, room: int) -> NDArray[np.int64]:
    """The pack of each row, from 0; `lengths` fall from first to last, and each row goes into the fullest pack that has room."""
    packs: list[list[int]] = [[] for _ in range(room + 1)]  # by the room left in them
    rooms = opened = 0  # bit n of rooms: there are packs with room n
    found = np.empty(len(lengths), np.int64)
    for place, size in enumerate(lengths.tolist()):
        if fitting := rooms >> size:
            space = size + (fitting & -fitting).bit_length() - 1
            pack = packs[space].pop()
            rooms ^= 0 if packs[space] else 1 << space
        else:
            space, pack, opened = room, opened, opened + 1
        found[place] = pack
        packs[space - size].append(pack)
        rooms |= 1 << (space - size)
    return found


class Packs:
    """The packs of each epoch: as many as best fit needs, in an order of the epoch's own."""

    def __init__(self, lengths: Integers, room: int, seed: int) -> None:
        self._lengths, self._seed = lengths, seed
        found = best_fit(np.sort(lengths)[::-1], room)
        # Places in the rows sorted by length, those of a pack together.
        self._places = np.argsort(found, kind="stable")
        self._ends = np.cumsum(np.bincount(found))

    def __len__(self) -> int:
        return len(self._ends)

    def epoch(self, number: int) -> list[Integers]:
        """The rows of each pack, packs and rows in the order in which the epoch trains on them."""
        drawn = epoch_order(len(self._lengths), self._seed, number)
        by_length = drawn[np.argsort(-self._lengths[drawn], kind="stable")]
        packs = np.split(by_length[self._places], self._ends[:-1])
        order = np.random.Generator(np.random.PCG64([self._seed, number, _PACKS])).permutation(len(packs))
        return [packs[pack] for pack in order]


def order_of(config: RunConfig, lengths: Integers) -> Order | None:
    """In which order a run sees rows of these lengths, cut to the maximum length; None where they are simply shuffled."""
    if config.packing is Packing.PACKED:
        return Packs(lengths, config.max_length, config.seed)
    if config.batch_order is BatchOrder.BY_LENGTH:
        return ByLength(lengths, config.seed, config.global_batch_size)
    return None

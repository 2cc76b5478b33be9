"""What the lengths of a tokenized set say: what a maximum length cuts off, what padding wastes. numpy alone.

`lengths` are tokens a row, untruncated, 0 for a row that cannot train; `first_trained` is the first token of a row that
carries loss, -1 where there is none. Every number is for a maximum length (`limit`) that is only looked at here, so that any
limit is answered at once.
"""

from collections.abc import Sequence

import numpy as np

from training.order import PAD_MULTIPLE, Integers, epoch_order, longest_of_batches

BINS = 60
_PACKING_CLASSES = 4096


def summary(lengths: Integers) -> dict[str, int]:
    """median, p95, max and total of the rows that hold anything."""
    filled = np.sort(lengths[lengths > 0])
    if not len(filled):
        return {"median": 0, "p95": 0, "max": 0, "total": 0}
    median, p95 = (int(filled[int(share * (len(filled) - 1))]) for share in (0.5, 0.95))
    return {"median": median, "p95": p95, "max": int(filled[-1]), "total": int(filled.sum(dtype=np.int64))}


def truncated(lengths: Integers, limit: int) -> int:
    """Rows longer than `limit`."""
    return int(np.count_nonzero(lengths > limit))


def lost_tokens(lengths: Integers, limit: int) -> int:
    """Tokens beyond `limit`, all rows together."""
    return int(np.maximum(lengths - limit, 0).sum(dtype=np.int64))


def trains(first_trained: Integers, limit: int) -> Integers:
    """Whether each row has a token that carries loss within `limit`: a mask."""
    return (first_trained >= 0) & (first_trained < limit)


def untrained(first_trained: Integers, lengths: Integers, limit: int) -> int:
    """Rows with tokens of which none carries loss within `limit`: they teach nothing and are left out."""
    return int(np.count_nonzero(lengths > 0) - np.count_nonzero(trains(first_trained, limit)))


def usual_limits(longest: int) -> list[int]:
    """Maximum lengths worth a look: powers of two from 128 up to the first that cuts nothing."""
    limits = [128]
    while limits[-1] < longest:
        limits.append(2 * limits[-1])
    return limits


def untrained_by_limit(first_trained: Integers, lengths: Integers, limits: Sequence[int]) -> dict[int, int]:
    """`untrained` at each of several limits."""
    return {limit: untrained(first_trained, lengths, limit) for limit in limits}


def longest_rows(lengths: Integers, count: int = 10) -> list[tuple[int, int]]:
    """(row from 0, length) of the longest rows, the longest first."""
    count = min(count, len(lengths))
    top = np.argpartition(lengths, len(lengths) - count)[len(lengths) - count :] if count else np.array([], int)
    found = [(int(row), int(lengths[row])) for row in top if lengths[row]]
    return sorted(found, key=lambda row: (-row[1], row[0]))


def histogram(lengths: Integers, bins: int = BINS) -> dict[str, list[int]]:
    """`edges` (one more than there are bins) and `counts` of rows, in bins of equal width from 0 to the longest."""
    longest = int(lengths.max(initial=1))
    width = -(-longest // bins)
    edges = np.arange(0, longest + width, width)
    counts = np.bincount((lengths[lengths > 0] - 1) // width, minlength=len(edges) - 1)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def cut_offs(lengths: Integers, first_trained: Integers, bins: int = BINS) -> list[dict[str, float]]:
    """What is lost at each edge of the histogram: limit, and the shares of rows cut, of tokens lost, of rows that teach nothing.

    All shares come from one sort of the lengths and one of the first trained tokens.
    """
    rows, total = int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64))
    if not rows:
        return []
    ordered, firsts = np.sort(lengths), np.sort(first_trained[first_trained >= 0])
    sums = np.cumsum(ordered, dtype=np.int64)
    limits = histogram(lengths, bins)["edges"][1:]
    whole = np.searchsorted(ordered, limits, side="right")
    learning = np.searchsorted(firsts, limits, side="left")
    points = []
    for limit, fits, learns in zip(limits, whole, learning, strict=True):
        cut = len(ordered) - int(fits)
        kept = (int(sums[fits - 1]) if fits else 0) + cut * limit
        shares = {"rows_cut": cut / rows, "tokens_lost": 1 - kept / total, "rows_untrained": 1 - int(learns) / rows}
        points.append({"limit": limit, **shares})
    return points


def padding_waste(lengths: Integers, micro_batch: int, seed: int, limit: int) -> float:
    """The share of a batch that is padding, on average over the first epoch in the order of `seed`."""
    if not len(lengths):
        return 0.0
    order = epoch_order(len(lengths), seed, 0)
    cut = np.minimum(lengths[order], limit)
    longest = -(-longest_of_batches(cut, micro_batch) // PAD_MULTIPLE) * PAD_MULTIPLE
    sizes = np.full(len(longest), micro_batch)
    sizes[-1] = len(cut) - micro_batch * (len(longest) - 1)
    return 1 - int(cut.sum(dtype=np.int64)) / int((longest * sizes).sum(dtype=np.int64))


def packing_waste(lengths: Integers, limit: int) -> float:
    """The share of packed sequences of `limit` tokens that is padding, packed by best fit, the longest rows first.

    Rows and room are counted in classes of equal size, so that a million rows take milliseconds: exact up to a limit of
    4,096; beyond it lengths are rounded up to a 4,096th of the limit, which says a little more waste than there is.
    """
    cut = np.minimum(lengths[lengths > 0], limit)
    if not len(cut):
        return 0.0
    unit = -(-limit // _PACKING_CLASSES)
    packs = _best_fit(np.bincount(-(-cut // unit)), limit // unit)
    return max(0.0, 1 - int(cut.sum(dtype=np.int64)) / (packs * limit))


def _best_fit(counts: Integers, room: int) -> int:
    """How many packs of `room` take counts[n] rows of size n, each in the fullest pack that has room for it."""
    packs, opened = [0] * (room + 1), 0  # packs by the room left in them
    rooms = 0  # bit n: there are packs with room n
    for size in range(min(len(counts) - 1, room), 0, -1):
        left = int(counts[size])
        while left:
            fitting = rooms >> size
            if fitting:
                space = size + (fitting & -fitting).bit_length() - 1
                moved = min(left, packs[space])
                packs[space] -= moved
                rooms ^= 0 if packs[space] else 1 << space
            else:
                each = room // size
                space, moved = room, -(-left // each)
                opened += moved
                if moved * each > left:  # the last pack is not filled with this size
                    moved -= 1
                    rest = room - (left - moved * each) * size
                    packs[rest] += 1
                    rooms |= 1 << rest
                rest = room - each * size
                packs[rest] += moved
                rooms |= (1 << rest) if moved else 0
                break
            packs[space - size] += moved
            rooms |= 1 << (space - size)
            left -= moved
    return opened

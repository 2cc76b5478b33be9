"""Statistics of a tokenized data set: rows and tokens lost to truncation, and tokens wasted on padding. Only numpy.

`lengths` are the tokens of each row, untruncated, 0 for a row that cannot train. `first_trained` is the index of a row's first
token with loss, or -1. `limit` is a maximum length; stores are not truncated, so statistics for any limit take no new
tokenization.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training.tokens.order import PAD_MULTIPLE, Integers, epoch_order, longest_of_batches

Mask = NDArray[np.bool_]

BINS = 60
ENDLESS = 2**31 - 1
"""The limit of tokens that truncates no row."""
_PACKING_CLASSES = 4096


def summary(lengths: Integers) -> dict[str, int]:
    """median, p95, max and total tokens of the rows that are not empty."""
    filled = np.sort(lengths[lengths > 0])
    if not len(filled):
        return {"median": 0, "p95": 0, "max": 0, "total": 0}
    median, p95 = (int(filled[int(share * (len(filled) - 1))]) for share in (0.5, 0.95))
    return {"median": median, "p95": p95, "max": int(filled[-1]), "total": int(filled.sum(dtype=np.int64))}


def truncated(lengths: Integers, limit: int) -> int:
    """The number of rows longer than `limit`."""
    return int(np.count_nonzero(lengths > limit))


def lost_tokens(lengths: Integers, limit: int) -> int:
    """The number of tokens beyond `limit` in all rows."""
    return int(np.maximum(lengths - limit, 0).sum(dtype=np.int64))


def chunks(lengths: Integers, limit: int) -> tuple[Integers, Integers, Integers]:
    """The pieces of at most `limit` tokens of texts for pretraining: of each its text, its number in it, and its tokens.

    A last piece of one token is left out, since it would have nothing to predict.
    """
    counts = -(-lengths // limit)
    counts -= (lengths % limit == 1) & (counts > 1)
    text = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    return text, number, np.minimum(lengths[text] - number * limit, limit)


def trains(first_trained: Integers, limit: int) -> Integers:
    """A mask of the rows with a loss token within `limit`."""
    return (first_trained >= 0) & (first_trained < limit)


def never_trains(first_trained: Integers, lengths: Integers) -> Mask:
    """A mask of the non-empty rows with no loss token at any limit: their weights are 0, or no turn of theirs carries loss."""
    mask: Mask = (first_trained < 0) & (lengths > 0)
    return mask


def untrained(first_trained: Integers, lengths: Integers, limit: int) -> int:
    """The number of non-empty rows with no loss tokens within `limit`, which are skipped."""
    return int(np.count_nonzero(lengths > 0) - np.count_nonzero(trains(first_trained, limit)))


def usual_limits(longest: int) -> list[int]:
    """Typical maximum lengths: powers of two from 128 up to the first that truncates nothing."""
    limits = [128]
    while limits[-1] < longest:
        limits.append(2 * limits[-1])
    return limits


def untrained_by_limit(first_trained: Integers, lengths: Integers, limits: Sequence[int]) -> dict[int, int]:
    """`untrained` for each limit."""
    return {limit: untrained(first_trained, lengths, limit) for limit in limits}


def longest_rows(lengths: Integers, count: int = 10) -> list[tuple[int, int]]:
    """(row from 0, length) of the longest rows, longest first."""
    count = min(count, len(lengths))
    top = np.argpartition(lengths, len(lengths) - count)[len(lengths) - count :] if count else np.array([], int)
    longest = [(int(row), int(lengths[row])) for row in top if lengths[row]]
    return sorted(longest, key=lambda row: (-row[1], row[0]))


def histogram(lengths: Integers, bins: int = BINS) -> dict[str, list[int]]:
    """`edges` (one more than bins) and `counts` of rows, in bins of equal width from 0 to the longest row."""
    longest = int(lengths.max(initial=1))
    width = -(-longest // bins)
    edges = np.arange(0, longest + width, width)
    counts = np.bincount((lengths[lengths > 0] - 1) // width, minlength=len(edges) - 1)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def cut_offs(lengths: Integers, first_trained: Integers, bins: int = BINS) -> list[dict[str, float]]:
    """For each edge of the histogram as limit: the shares of truncated rows, of lost tokens, and of rows with no loss tokens.

    Takes one sort of the lengths and one of the first loss tokens.
    """
    rows, total = int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64))
    if not rows:
        return []
    ordered, firsts = np.sort(lengths), np.sort(first_trained[first_trained >= 0])
    sums = np.cumsum(ordered, dtype=np.int64)
    limits = histogram(lengths, bins)["edges"][1:]
    complete = np.searchsorted(ordered, limits, side="right")
    training = np.searchsorted(firsts, limits, side="left")
    points = []
    for limit, fit, train in zip(limits, complete, training, strict=True):
        longer = len(ordered) - int(fit)
        kept = (int(sums[fit - 1]) if fit else 0) + longer * limit
        shares = {"rows_cut": longer / rows, "tokens_lost": 1 - kept / total, "rows_untrained": 1 - int(train) / rows}
        points.append({"limit": limit, **shares})
    return points


def padding_waste(lengths: Integers, micro_batch: int, seed: int, limit: int) -> float:
    """The share of pad tokens in the batches of the first epoch, in the order of `seed`."""
    if not len(lengths):
        return 0.0
    order = epoch_order(len(lengths), seed, 0)
    sizes = np.minimum(lengths[order], limit)
    longest = -(-longest_of_batches(sizes, micro_batch) // PAD_MULTIPLE) * PAD_MULTIPLE
    rows = np.full(len(longest), micro_batch)
    rows[-1] = len(sizes) - micro_batch * (len(longest) - 1)
    return 1 - int(sizes.sum(dtype=np.int64)) / int((longest * rows).sum(dtype=np.int64))


def packing_waste(lengths: Integers, limit: int) -> float:
    """The share of pad tokens in packed sequences of `limit` tokens (best fit, longest rows first).

    Lengths are counted in at most 4,096 classes, so that a million rows take milliseconds. The result is exact up to a limit
    of 4,096; above, lengths are rounded up to limit / 4,096, which slightly overestimates the waste.
    """
    sizes = np.minimum(lengths[lengths > 0], limit)
    if not len(sizes):
        return 0.0
    unit = -(-limit // _PACKING_CLASSES)
    packs = _best_fit(np.bincount(-(-sizes // unit)), limit // unit)
    return max(0.0, 1 - int(sizes.sum(dtype=np.int64)) / (packs * limit))


def _best_fit(counts: Integers, room: int) -> int:
    """The number of packs of size `room` for counts[n] rows of size n; each row goes into the fullest pack with enough room."""
    packs, opened = [0] * (room + 1), 0  # packs by remaining room
    rooms = 0  # bit n is set if there are packs with room n
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
                if moved * each > left:  # the last pack has room for more rows of this size
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

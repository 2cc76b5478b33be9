"""Finds exact and near duplicates of rows during tokenization. Memory does not grow with the data set.

Exact duplicates have the same 64-bit hash of their tokens. Near duplicates are found by MinHash (Broder 1997) over shingles of
tokens, 64 values per row in 16 bands of 4. Rows that agree in a band are compared: they are near duplicates if the share of equal
values, an estimate of the Jaccard similarity of their shingles, is at least 0.8. Shingles that many rows share (of a template or
a system prompt) are ignored, since they would make all rows similar.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.tokens.order import Integers

SHINGLE = 4  # tokens
VALUES, BANDS = 64, 16
SIMILAR = 0.8
COMMON_SHARE = 0.05  # a shingle in a larger share of the first chunk's rows is ignored
_COMMON_ROWS, _FEW_ROWS = 40, 3  # a shingle in at most this many rows is never common, nor in half of a few rows
_COMMON_BITS = 20
_BLOCK = 250_000  # rows compared at a time

_SEEDS = np.random.Generator(np.random.PCG64(1))
_FACTORS = _SEEDS.integers(2**32, size=VALUES, dtype=np.uint32) | np.uint32(1)
_ADDED = _SEEDS.integers(2**32, size=VALUES, dtype=np.uint32)
_POWERS = _SEEDS.integers(2**63, size=2**16, dtype=np.uint64) | np.uint64(1)


def row_hashes(tokens: NDArray[np.int32], lengths: Integers) -> NDArray[np.uint64]:
    """A hash of each row's tokens, 0 for a row without tokens. `tokens` are those of all rows, concatenated."""
    hashes = np.zeros(len(lengths), np.uint64)
    filled = lengths > 0
    if not filled.any():
        return hashes
    starts = (np.cumsum(lengths) - lengths)[filled]
    positions = np.arange(len(tokens)) - np.repeat(starts, lengths[filled])
    mixed = scrambled(
        (tokens.astype(np.uint64) + np.uint64(1)) * _POWERS[positions % len(_POWERS)] + positions.astype(np.uint64)
    )
    sums = np.add.reduceat(mixed, starts)
    hashes[filled] = np.maximum(scrambled(sums + lengths[filled].astype(np.uint64)), np.uint64(1))
    return hashes


class Signatures:
    """Writes the MinHash values of rows to files in `folder`, chunk by chunk."""

    def __init__(self, folder: Path) -> None:
        self._files = [(folder / f"band-{band}.u32").open("wb") for band in range(BANDS)]
        self._values = (folder / "values.u16").open("wb")
        self._common: NDArray[np.bool_] | None = None

    def add(self, tokens: NDArray[np.int32], lengths: Integers) -> None:
        """Adds the rows of a chunk; `tokens` are those of all its rows, concatenated."""
        shingles, counts = _shingles(tokens, lengths)
        if self._common is None:
            self._common = _common(shingles, counts)
        shingles, counts = _distinctive(shingles, counts, self._common)
        values = np.full((len(lengths), VALUES), 2**32 - 1, np.uint32)
        filled = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[filled]
        for index in range(VALUES if len(filled) else 0):
            values[filled, index] = np.minimum.reduceat(shingles * _FACTORS[index] + _ADDED[index], starts)
        self._values.write(values.astype(np.uint16).tobytes())
        for file, band in zip(self._files, np.split(values, BANDS, axis=1), strict=True):
            keys = np.maximum(_folded(band), np.uint32(1))
            keys[counts == 0] = 0  # too short for a shingle
            file.write(keys.tobytes())

    def close(self) -> None:
        for file in (*self._files, self._values):
            file.close()


def exact_duplicates(hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
    """For each row the first row with the same hash; -1 if it is that row or has no tokens."""
    earlier = np.full(len(hashes), -1, np.int32)
    parts = -(-len(hashes) // _BLOCK)
    for part in range(parts):
        rows = np.flatnonzero((hashes % np.uint64(parts) == part) & (hashes != 0))
        order = rows[np.argsort(hashes[rows], kind="stable")]
        head = _heads(hashes[order])
        repeated = head != np.arange(len(order))
        earlier[order[repeated]] = order[head[repeated]]
    return earlier


def similar_pairs(
    folder: Path, exact: NDArray[np.int32], wanted: Callable[[Integers, Integers], NDArray[np.bool_]]
) -> Iterator[tuple[Integers, Integers]]:
    """Yields pairs of similar rows, later and earlier ones, in the order of bands; of equal rows only the first is compared.

    `wanted` gets pairs that agree in a band, and returns a mask of those to compare.
    """
    if not len(exact):
        return
    with (folder / "values.u16").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    values = np.frombuffer(mapped, np.uint16).reshape(-1, VALUES)
    parts = -(-len(exact) // _BLOCK)
    for band in range(BANDS):
        for part in range(parts):
            rows, keys = _keys(folder / f"band-{band}.u32", exact, part, parts)
            order = np.argsort(keys, kind="stable")
            rows, head = rows[order], _heads(keys[order])
            # Compares each row with the first of its group and with its predecessor; all pairs would be too many.
            for other in (head, np.maximum(np.arange(len(rows)) - 1, head)):
                yield from _similar(rows, rows[other], values, wanted)
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)  # drops the pages read so far, which count as this process's memory


def common_above(count: int) -> float:
    """The number of `count` rows above which what they contain is a template."""
    return max(_FEW_ROWS, min(_COMMON_ROWS, count // 2), COMMON_SHARE * count)


def shared_rows(train: NDArray[np.uint64], held_out: NDArray[np.uint64]) -> tuple[Integers, Integers]:
    """Pairs of equal rows: for each row of `held_out` that is also in `train`, the first such row of `train` and the row itself."""
    common, first, _ = np.intersect1d(train, held_out, return_indices=True)
    shared, first = common[common != 0], first[common != 0]
    rows = np.flatnonzero(np.isin(held_out, shared))
    return first[np.searchsorted(shared, held_out[rows])], rows


def shared_between(hashes: NDArray[np.uint64], ends: Sequence[int] | Integers) -> list[tuple[int, int, int]]:
    """(first set, second set, rows of the second that are also in the first) for each two data sets with equal rows.

    The rows of all sets are one after another; `ends` are the indexes at which each ends.
    """
    sets = np.split(hashes, [int(end) for end in ends[:-1]])
    pairs = [(first, second) for second in range(len(sets)) for first in range(second)]
    counted = [(first, second, count_shared(sets[first], sets[second])) for first, second in pairs]
    return [(first, second, count) for first, second, count in counted if count]


def count_shared(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> int:
    """The number of rows of the second data set that are also in the first; rows without tokens do not count."""
    return int(np.count_nonzero(np.isin(second, first) & (second != 0)))


def _similar(
    rows: Integers,
    others: Integers,
    values: NDArray[np.uint16],
    wanted: Callable[[Integers, Integers], NDArray[np.bool_]],
) -> Iterator[tuple[Integers, Integers]]:
    compared = np.flatnonzero((rows != others) & wanted(rows, others))
    for start in range(0, len(compared), 10_000):
        pairs = compared[start : start + 10_000]
        similar = pairs[(values[rows[pairs]] == values[others[pairs]]).mean(axis=1) >= SIMILAR]
        if len(similar):
            yield rows[similar], others[similar]


def _keys(file: Path, exact: NDArray[np.int32], part: int, parts: int) -> tuple[Integers, NDArray[np.uint32]]:
    """Rows and keys of a band whose key is `part` modulo `parts`, without exact duplicates."""
    rows, keys = [], []
    with file.open("rb") as stream:
        for start in range(0, len(exact), _BLOCK):
            block = np.fromfile(stream, np.uint32, _BLOCK)
            selected = np.flatnonzero(
                (block != 0) & (block % np.uint32(parts) == part) & (exact[start : start + _BLOCK] < 0)
            )
            rows.append(selected + start)
            keys.append(block[selected])
    return np.concatenate(rows), np.concatenate(keys)


def _heads(ordered: Integers) -> Integers:
    """For each index into sorted values, the first index with the same value."""
    places = np.arange(len(ordered))
    begins = np.ones(len(ordered), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    return np.maximum.accumulate(np.where(begins, places, 0))


def _shingles(tokens: NDArray[np.int32], lengths: Integers) -> tuple[NDArray[np.uint32], Integers]:
    """The hashes of all shingles (SHINGLE consecutive tokens of a row), and the number of each row."""
    counts = np.maximum(lengths - (SHINGLE - 1), 0)
    if not counts.any():
        return np.empty(0, np.uint32), counts
    places = len(tokens) - SHINGLE + 1
    words = tokens.astype(np.uint32) * np.uint32(0x9E3779B1)
    hashed = np.zeros(places, np.uint32)
    for offset in range(SHINGLE):
        hashed = (hashed ^ words[offset : offset + places]) * np.uint32(0x85EBCA6B)
        hashed ^= hashed >> np.uint32(15)
    inside = np.ones(len(tokens), bool)
    ends = np.cumsum(lengths)
    for offset in range(1, SHINGLE):
        inside[ends[lengths >= offset] - offset] = False
    return hashed[inside[:places]], counts


def _common(shingles: NDArray[np.uint32], counts: Integers) -> NDArray[np.bool_]:
    """A mask, by the first bits of a shingle: True if more than COMMON_SHARE of these rows contain it."""
    rows = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    cells = np.unique(rows << np.uint64(_COMMON_BITS) | (shingles >> np.uint32(32 - _COMMON_BITS)))
    frequency = np.bincount((cells & np.uint64(2**_COMMON_BITS - 1)).astype(np.intp), minlength=2**_COMMON_BITS)
    return frequency > common_above(len(counts))


def _distinctive(
    shingles: NDArray[np.uint32], counts: Integers, common: NDArray[np.bool_]
) -> tuple[NDArray[np.uint32], Integers]:
    """The shingles that are not common, or all shingles of a row that has only common ones."""
    rows = np.repeat(np.arange(len(counts)), counts)
    kept = ~common[shingles >> np.uint32(32 - _COMMON_BITS)]
    left = np.bincount(rows[kept], minlength=len(counts))
    kept |= (left == 0)[rows]
    return shingles[kept], np.where(left == 0, counts, left)


def _folded(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Combines the values of a band into one key per row."""
    key = np.zeros(len(values), np.uint32)
    for column in values.T:
        key = (key ^ column) * np.uint32(0x9E3779B1)
        key ^= key >> np.uint32(16)
    return key


def scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer: every bit of a value changes half of the result's."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

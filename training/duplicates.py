"""Rows that repeat an earlier one, exactly or nearly: found while tokenizing, in memory that does not grow with the set.

Exact: a 64-bit hash of a row's tokens. Near: MinHash (Broder 1997) over shingles of tokens, 64 values a row in 16 bands of 4;
rows that agree in a band are compared, and count where the share of equal values, which estimates the Jaccard similarity of
their shingles, is 0.8 or more. Shingles that many rows have (a template's, a system prompt's) are left out: they would make
every row like every other.
"""

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.order import Integers

SHINGLE = 4  # tokens
VALUES, BANDS = 64, 16
SIMILAR = 0.8
COMMON_SHARE = 0.05  # of the rows looked at: a shingle in more of them says nothing
_COMMON_ROWS = 40  # fewer rows than this are no ground to call anything common
_COMMON_BITS = 20
_BLOCK = 250_000  # rows joined at a time

_SEEDS = np.random.Generator(np.random.PCG64(1))
_FACTORS = _SEEDS.integers(2**32, size=VALUES, dtype=np.uint32) | np.uint32(1)
_ADDED = _SEEDS.integers(2**32, size=VALUES, dtype=np.uint32)
_POWERS = _SEEDS.integers(2**63, size=2**16, dtype=np.uint64) | np.uint64(1)


def row_hashes(tokens: NDArray[np.int32], lengths: Integers) -> NDArray[np.uint64]:
    """A hash of each row's tokens, 0 for a row that has none. `tokens` are those of all rows, one after another."""
    hashes = np.zeros(len(lengths), np.uint64)
    filled = lengths > 0
    if not filled.any():
        return hashes
    starts = (np.cumsum(lengths) - lengths)[filled]
    place = np.arange(len(tokens)) - np.repeat(starts, lengths[filled])
    mixed = _mixed((tokens.astype(np.uint64) + np.uint64(1)) * _POWERS[place % len(_POWERS)] + place.astype(np.uint64))
    sums = np.add.reduceat(mixed, starts)
    hashes[filled] = np.maximum(_mixed(sums + lengths[filled].astype(np.uint64)), np.uint64(1))
    return hashes


class Signatures:
    """The MinHash values of rows, chunk by chunk, kept in files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._files = [(folder / f"band-{band}.u32").open("wb") for band in range(BANDS)]
        self._values = (folder / "values.u16").open("wb")
        self._common: NDArray[np.bool_] | None = None

    def add(self, tokens: NDArray[np.int32], lengths: Integers) -> None:
        """The rows of a chunk, their tokens one after another."""
        shingles, counts = _shingles(tokens, lengths)
        if self._common is None:
            self._common = _common(shingles, counts)
        shingles, counts = _telling(shingles, counts, self._common)
        values = np.full((len(lengths), VALUES), 2**32 - 1, np.uint32)
        filled = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[filled]
        for index in range(VALUES if len(filled) else 0):
            values[filled, index] = np.minimum.reduceat(shingles * _FACTORS[index] + _ADDED[index], starts)
        self._values.write(values.astype(np.uint16).tobytes())
        for file, band in zip(self._files, np.split(values, BANDS, axis=1), strict=True):
            keys = np.maximum(_folded(band), np.uint32(1))
            keys[counts == 0] = 0  # too short to be like anything
            file.write(keys.tobytes())

    def close(self) -> None:
        for file in (*self._files, self._values):
            file.close()


def exact_duplicates(hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
    """For each row the first row with the same hash, -1 where it is the first itself or has no tokens."""
    earlier = np.full(len(hashes), -1, np.int32)
    parts = -(-len(hashes) // _BLOCK)
    for part in range(parts):
        rows = np.flatnonzero((hashes % np.uint64(parts) == part) & (hashes != 0))
        order = rows[np.argsort(hashes[rows], kind="stable")]
        head = _heads(hashes[order])
        again = head != np.arange(len(order))
        earlier[order[again]] = order[head[again]]
    return earlier


def near_duplicates(folder: Path, exact: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each row an earlier one that is much like it and not the same, -1 where there is none."""
    earlier = np.full(len(exact), -1, np.int32)
    if not len(exact):
        return earlier
    with (folder / "values.u16").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    values = np.frombuffer(mapped, np.uint16).reshape(-1, VALUES)
    parts = -(-len(exact) // _BLOCK)
    for band in range(BANDS):
        for part in range(parts):
            rows, keys = _keys(folder / f"band-{band}.u32", exact, part, parts)
            order = np.argsort(keys, kind="stable")
            rows, head = rows[order], _heads(keys[order])
            # With the first of its group, and with its neighbour in it: groups may be long, and every pair too many.
            for other in (head, np.maximum(np.arange(len(rows)) - 1, head)):
                _join(rows, rows[other], values, earlier)
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)  # pages that were looked at, and count as ours
    return earlier


def shared_rows(train: NDArray[np.uint64], held_out: NDArray[np.uint64]) -> tuple[Integers, Integers]:
    """Pairs of equal rows of two sets: for each row of `held_out` that is in `train` too, it and the first such row."""
    common, first, _ = np.intersect1d(train, held_out, return_indices=True)
    told, first = common[common != 0], first[common != 0]
    rows = np.flatnonzero(np.isin(held_out, told))
    return first[np.searchsorted(told, held_out[rows])], rows


def _join(rows: Integers, others: Integers, values: NDArray[np.uint16], earlier: NDArray[np.int32]) -> None:
    open_pairs = np.flatnonzero((rows != others) & (earlier[rows] < 0))
    for start in range(0, len(open_pairs), 10_000):
        pairs = open_pairs[start : start + 10_000]
        alike = (values[rows[pairs]] == values[others[pairs]]).mean(axis=1) >= SIMILAR
        earlier[rows[pairs[alike]]] = others[pairs[alike]]


def _keys(file: Path, exact: NDArray[np.int32], part: int, parts: int) -> tuple[Integers, NDArray[np.uint32]]:
    """Rows and keys of a band, of the share `part`; rows that repeat another exactly are left out."""
    rows, keys = [], []
    with file.open("rb") as stream:
        for start in range(0, len(exact), _BLOCK):
            block = np.fromfile(stream, np.uint32, _BLOCK)
            mine = np.flatnonzero(
                (block != 0) & (block % np.uint32(parts) == part) & (exact[start : start + _BLOCK] < 0)
            )
            rows.append(mine + start)
            keys.append(block[mine])
    return np.concatenate(rows), np.concatenate(keys)


def _heads(ordered: Integers) -> Integers:
    """For each place in sorted values the first place with the same value."""
    places = np.arange(len(ordered))
    begins = np.ones(len(ordered), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    return np.maximum.accumulate(np.where(begins, places, 0))


def _shingles(tokens: NDArray[np.int32], lengths: Integers) -> tuple[NDArray[np.uint32], Integers]:
    """A hash of every SHINGLE tokens in a row, and how many each row has."""
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
    """By their first bits, the shingles that more than COMMON_SHARE of these rows have."""
    rows = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    cells = np.unique(rows << np.uint64(_COMMON_BITS) | (shingles >> np.uint32(32 - _COMMON_BITS)))
    frequency = np.bincount((cells & np.uint64(2**_COMMON_BITS - 1)).astype(np.intp), minlength=2**_COMMON_BITS)
    return frequency > max(_COMMON_ROWS, COMMON_SHARE * len(counts))


def _telling(
    shingles: NDArray[np.uint32], counts: Integers, common: NDArray[np.bool_]
) -> tuple[NDArray[np.uint32], Integers]:
    """The shingles that are not common; all of them for a row that has no other."""
    rows = np.repeat(np.arange(len(counts)), counts)
    kept = ~common[shingles >> np.uint32(32 - _COMMON_BITS)]
    left = np.bincount(rows[kept], minlength=len(counts))
    kept |= (left == 0)[rows]
    return shingles[kept], np.where(left == 0, counts, left)


def _folded(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """One key from the values of a band."""
    key = np.zeros(len(values), np.uint32)
    for column in values.T:
        key = (key ^ column) * np.uint32(0x9E3779B1)
        key ^= key >> np.uint32(16)
    return key


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer: every bit of a value changes half of the result's."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

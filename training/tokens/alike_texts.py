"""Finds short rows whose texts are nearly the same, by characters: a changed letter changes too large a part of their few tokens.

Two rows are alike if one letter, space or sign of prose separates them, or, by MinHash over four characters, if at least 0.8 of
what they contain is the same. Case and white space make no difference. Digits and signs such as + or = must be the same: `7 + 5`
and `7 + 6` are two questions. What many rows contain, such as a template, does not count: of the rest at least 12 characters must
be left, so that `cat` and `car` within the same sentence are two words.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.tokens.duplicates import Signatures, common_above, scrambled, similar_pairs
from training.tokens.order import Integers

LONGEST = 256
"""Tokens of a row that is compared by its characters, too; a changed letter in a longer one leaves most of its tokens the same."""
WINDOW = 4  # characters
DISTINCT = 12  # characters
_MOST_DISTINCT = 80  # of a row that is compared by its keys; of longer ones most sequences stay the same
_PROSE = frozenset(".,;:!?'\"\u2018\u2019\u201c\u201d\u2026\u3002\uff0c\uff01\uff1f\u3001")
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
_BITS = 20
_PARTS_BYTES = 2**26


class Texts:
    """Writes what is compared of rows to files in `folder`, chunk by chunk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._rows = 0
        self._signatures = Signatures(folder)
        self._keys = (folder / "keys.u64").open("wb")
        self._key_rows = (folder / "keys.i64").open("wb")
        self._common: NDArray[np.bool_] | None = None

    def add(self, texts: Sequence[str]) -> None:
        """Adds the texts of a chunk; an empty one is compared with none."""
        normal = [" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts]
        lengths = np.fromiter(map(len, normal), np.int64, len(normal))
        codes = np.frombuffer("".join(normal).encode("utf-32-le", "surrogatepass"), np.uint32)
        rows = np.repeat(np.arange(len(normal)), lengths)
        free, signs = _free(codes), np.zeros(len(normal), np.uint64)
        # The digits and signs of a row, in their order: rows with others have no key and no sequence in common.
        fixed = np.flatnonzero(~free)
        order = np.arange(len(fixed)) - np.searchsorted(rows[fixed], rows[fixed])
        np.add.at(
            signs, rows[fixed], scrambled(codes[fixed].astype(np.uint64) << np.uint64(32) | order.astype(np.uint64))
        )
        shown = codes.astype(np.uint64) ^ scrambled(signs)[rows]
        self._signatures.add(shown.astype(np.uint32).view(np.int32), lengths)
        self._write_keys(codes, lengths, rows, free)
        self._rows += len(normal)

    def close(self) -> None:
        self._signatures.close()
        self._keys.close()
        self._key_rows.close()

    def _write_keys(
        self, codes: NDArray[np.uint32], lengths: Integers, rows: Integers, free: NDArray[np.bool_]
    ) -> None:
        """Writes a key of each row's text, and one of its text without each character that may differ: rows with a key in common
        are equal, or one change apart."""
        powers = _powers(int(lengths.max(initial=0)) + 1)
        starts = np.cumsum(lengths) - lengths
        places = np.arange(len(codes)) - starts[rows]
        sums = np.concatenate([[np.uint64(0)], np.cumsum(scrambled(codes.astype(np.uint64)) * powers[places])])
        before = sums[:-1] - sums[starts[rows]]
        after = sums[(starts + lengths)[rows]] - sums[1:]
        whole = sums[starts + lengths] - sums[starts]
        distinct = self._distinct(codes, lengths, rows)
        counts = np.bincount(rows[distinct], minlength=len(lengths))
        compared = (counts >= DISTINCT) & (counts <= _MOST_DISTINCT)
        chosen = np.flatnonzero(distinct & free & compared[rows])
        without = before[chosen] + after[chosen] * np.uint64(_INVERSE)
        filled = np.flatnonzero(lengths)
        keys = np.concatenate([scrambled(whole[filled]), scrambled(without)])
        self._keys.write(keys.tobytes())
        self._key_rows.write((np.concatenate([filled, rows[chosen]]).astype(np.int64) + self._rows).tobytes())

    def _distinct(self, codes: NDArray[np.uint32], lengths: Integers, rows: Integers) -> NDArray[np.bool_]:
        """A mask of the characters in a sequence that few rows contain."""
        if len(codes) < WINDOW:
            return np.zeros(len(codes), bool)
        hashed = np.zeros(len(codes) - WINDOW + 1, np.uint64)
        for offset in range(WINDOW):
            hashed = scrambled(hashed ^ codes[offset : offset + len(hashed)])
        inside = rows[: len(hashed)] == rows[WINDOW - 1 :]
        bits = (hashed >> np.uint64(64 - _BITS)).astype(np.int64)
        if self._common is None:
            cells = np.unique(rows[: len(hashed)][inside] << _BITS | bits[inside])
            frequency = np.bincount(cells & (2**_BITS - 1), minlength=2**_BITS)
            self._common = frequency > common_above(int(np.count_nonzero(lengths)))
        rare = inside & ~self._common[bits]
        mask = np.zeros(len(codes), bool)
        for offset in range(WINDOW):
            mask[offset : offset + len(rare)] |= rare
        return mask


def alike_pairs(
    folder: Path, count: int, wanted: Callable[[Integers, Integers], NDArray[np.bool_]]
) -> Iterator[tuple[Integers, Integers]]:
    """Yields pairs of rows that are alike, later and earlier ones, of the `count` rows that `Texts` wrote to `folder`. `wanted`
    gets pairs that may be alike, and returns a mask of those to compare."""
    keys, rows = np.fromfile(folder / "keys.u64", np.uint64), np.fromfile(folder / "keys.i64", np.int64)
    parts = max(1, keys.nbytes // _PARTS_BYTES)
    for part in range(parts):
        chosen = np.flatnonzero(keys % np.uint64(parts) == part)
        chosen = chosen[np.lexsort((rows[chosen], keys[chosen]))]
        same = np.flatnonzero(keys[chosen[1:]] == keys[chosen[:-1]])
        later, earlier = rows[chosen[same + 1]], rows[chosen[same]]
        pairs = np.flatnonzero((later != earlier) & wanted(later, earlier))
        if len(pairs):
            yield later[pairs], earlier[pairs]
    yield from similar_pairs(folder, np.full(count, -1, np.int32), wanted)


def _free(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """A mask of the characters that may differ: letters, spaces and the signs of prose."""
    known, places = np.unique(codes, return_inverse=True)
    letters = (chr(code) for code in known.tolist())
    mask: NDArray[np.bool_] = np.array(
        [letter in _PROSE or letter.isspace() or unicodedata.category(letter)[0] in "LM" for letter in letters], bool
    )
    return mask[places] if len(mask) else np.zeros(0, bool)


def _powers(count: int) -> NDArray[np.uint64]:
    """The first powers of the base, modulo 2**64."""
    factors = np.full(count, _BASE, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)

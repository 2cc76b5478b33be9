"""Which rows of a tokenized set a run trains on and which it holds out: the same on every rank. numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.failure import DataError
from training.lengths import trains
from training.order import Integers

_SPLIT, _SAMPLE = 1, 2  # numbers apart from the order of epochs, which are (seed, epoch, 0)


@dataclass(frozen=True)
class Selection:
    """Rows of the file, from 0 and in its order; of the rows looked at, how many are cut off and how many teach nothing."""

    train: Integers
    held_out: Integers
    truncated: int
    untrained: int


def select(
    lengths: Integers,
    first_trained: Integers,
    *,
    max_length: int,
    seed: int,
    eval_split: float = 0,
    data_slice: str | None = None,
    max_samples: int | None = None,
    strata: Sequence[Any] | None = None,
) -> Selection:
    """Takes the slice, leaves out what teaches nothing at `max_length`, draws `max_samples` and holds out `eval_split`.

    `strata` has a value for every row of the file; each value gets its share of the held-out rows.

    Raises:
        DataError: nothing would be left to train on.
    """
    rows = sliced_rows(data_slice, len(lengths))
    lengths, first_trained = lengths[:rows], first_trained[:rows]
    kept = np.flatnonzero(trains(first_trained, max_length))
    truncated = int(np.count_nonzero(lengths > max_length))
    untrained = int(np.count_nonzero(lengths > 0)) - len(kept)
    if not len(kept):
        message = f"has no row with an answer left within max_length {max_length}."
        raise DataError(message, "Raise max_length.", field="max_length")
    if max_samples and max_samples < len(kept):
        kept = np.sort(_generator(seed, _SAMPLE).permutation(kept)[:max_samples])
    held_out = _held_out(kept, held_out_count(eval_split, len(kept)), seed, strata)
    training = np.zeros(rows, bool)
    training[kept] = True
    training[held_out] = False
    return Selection(np.flatnonzero(training), held_out, truncated, untrained)


def sliced_rows(data_slice: str | None, rows: int) -> int:
    """How many of the first rows `data_slice` takes: `1%`, a share below 1 or a number; at least one."""
    if not data_slice:
        return rows
    number = float(data_slice.removesuffix("%"))
    share = number / 100 if data_slice.endswith("%") else number if number < 1 else None
    return min(rows, max(1, round(rows * share) if share is not None else int(number)))


def held_out_count(eval_split: float, rows: int) -> int:
    """The rows held out of so many: a share below 1 of them, or that number.

    Raises:
        DataError: it would be all of them.
    """
    count = round(rows * eval_split) if eval_split < 1 else int(eval_split)
    if eval_split and not count:
        count = min(1, rows - 1)
    if count >= rows:
        message = f"has {rows} rows that train, and eval_split holds out {count}."
        raise DataError(message, "Lower eval_split.", field="eval_split")
    return count


def _held_out(rows: Integers, count: int, seed: int, strata: Sequence[Any] | None) -> Integers:
    generator = _generator(seed, _SPLIT)
    if strata is None or not count:
        return np.sort(generator.permutation(rows)[:count])
    _, values = np.unique(np.array([str(strata[row]) for row in rows]), return_inverse=True)
    wanted = np.bincount(values) * (count / len(rows))
    shares = np.floor(wanted).astype(int)
    # What rounding down leaves goes to the values that lost most by it.
    shares[np.argsort(shares - wanted, kind="stable")[: count - shares.sum()]] += 1
    drawn = [generator.permutation(rows[values == value])[:share] for value, share in enumerate(shares)]
    return np.sort(np.concatenate(drawn))


def _generator(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, 0, purpose]))

"""Selects the training and held-out rows of a tokenized data set, the same on every rank. Only numpy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.errors import DataError
from training.tokens.lengths import never_trains, trains
from training.tokens.order import Integers

_SPLIT, _SAMPLE = 1, 2  # differ from the seeds of the epoch order, which are (seed, epoch, 0)


@dataclass(frozen=True)
class Selection:
    """Row numbers from 0 in file order, and the number of truncated rows and of those that are skipped.

    `untrained` have their loss tokens beyond the maximum length, `without_loss` have none.
    """

    train: Integers
    held_out: Integers
    truncated: int
    untrained: int
    without_loss: int


@dataclass(frozen=True)
class SetRows:
    """One of several data sets: the number of its rows, the most of them that are used, and its name for messages."""

    rows: int
    max_rows: int | None = None
    name: str = ""


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
    groups: Integers | None = None,
    sets: Sequence[SetRows] = (),
) -> Selection:
    """Takes the slice, drops rows with no loss tokens within `max_length`, samples `max_samples`, holds out `eval_split`.

    `strata` has a value for every row of the file; each value gets its share of the held-out rows. `groups` has
    the number of its group for every row: rows of one group are on one side of the split, that of the first one; then fewer rows
    than asked for are held out where the groups do not add up to their number. `sets` are the data sets whose
    rows these are, one after another: slice and samples are taken from each, and each gets its share of the held-out rows.

    Raises:
        DataError: no training row is left, or all rows are of one group; of several data sets it names the first without one.
    """
    sets = sets or (SetRows(len(lengths)),)
    usable_rows, start, taken = trains(first_trained, max_length), 0, np.zeros(len(lengths), bool)
    chosen = []
    for number, one in enumerate(sets):
        end = start + sliced_rows(data_slice, one.rows)
        taken[start:end] = True
        rows = start + np.flatnonzero(usable_rows[start:end])
        if not len(rows):
            raise _nothing_trains(first_trained[start:end], max_length, one.name)
        most = min(max_samples or len(rows), one.max_rows or len(rows))
        chosen.append(np.sort(_generator(seed, _SAMPLE, number).permutation(rows)[:most]) if most < len(rows) else rows)
        start += one.rows
    truncated = int(np.count_nonzero(lengths[taken] > max_length))
    without_loss = int(np.count_nonzero(never_trains(first_trained, lengths)[taken]))
    untrained = int(np.count_nonzero(taken & (lengths > 0) & ~usable_rows)) - without_loss
    usable = np.concatenate(chosen)
    held_out = _held_out(
        usable, held_out_count(eval_split, len(usable)), seed, _strata(sets, strata) if eval_split else None, groups
    )
    _refuse_empty(sets, usable, held_out)
    training = np.zeros(len(lengths), bool)
    training[usable] = True
    training[held_out] = False
    return Selection(np.flatnonzero(training), held_out, truncated, untrained, without_loss)


def _nothing_trains(first_trained: Integers, max_length: int, name: str) -> DataError:
    if (first_trained >= 0).any():
        message = f"has no row with answer tokens within max_length {max_length}."
        return DataError(message, "Raise max_length.", file=name, field="max_length")
    fix = "Check weight_field, loss_on, and the roles of the turns."
    return DataError("has no row that carries loss.", fix, file=name)


def sliced_rows(data_slice: str | None, rows: int) -> int:
    """The number of rows that `data_slice` (`1%`, a share below 1, or a number) takes; at least one."""
    if not data_slice:
        return rows
    number = float(data_slice.removesuffix("%"))
    share = number / 100 if data_slice.endswith("%") else number if number < 1 else None
    return min(rows, max(1, round(rows * share) if share is not None else int(number)))


def held_out_count(eval_split: float, rows: int) -> int:
    """The number of held-out rows: a share below 1 of `rows`, or that number. Raises DataError if no row would be left."""
    count = round(rows * eval_split) if eval_split < 1 else int(eval_split)
    if eval_split and not count:
        count = min(1, rows - 1)
    if count >= rows:
        message = f"has {rows} training rows, and eval_split holds out {count}."
        raise DataError(message, "Lower eval_split.", field="eval_split")
    return count


def _strata(sets: Sequence[SetRows], strata: Sequence[Any] | None) -> Sequence[Any] | None:
    """The strata within each data set."""
    if len(sets) == 1:
        return strata
    numbers = np.repeat(np.arange(len(sets)), [one.rows for one in sets]).tolist()
    return numbers if strata is None else list(zip(numbers, strata, strict=True))


def _refuse_empty(sets: Sequence[SetRows], usable: Integers, held_out: Integers) -> None:
    """Refuses held-out rows that are all rows of a data set."""
    ends = np.cumsum([one.rows for one in sets])
    left = np.diff(np.searchsorted(np.setdiff1d(usable, held_out), ends), prepend=0)
    for one, rows in zip(sets, left, strict=True):
        if not rows:
            raise DataError("has no row left for training.", "Lower eval_split.", file=one.name, field="eval_split")


def _held_out(rows: Integers, count: int, seed: int, strata: Sequence[Any] | None, groups: Integers | None) -> Integers:
    """`count` of the rows, drawn by the seed. With groups that have one row each, the rows are those without groups."""
    generator = _generator(seed, _SPLIT)
    if not count:
        return rows[:0]
    if groups is not None:
        heads, sizes, members = _grouped(rows, groups)
        if len(heads) == 1:
            message = f"has {len(rows):,} rows of one group, which cannot be split."
            raise DataError(message, "Clear group_by, or set eval_split to 0.", field="group_by")
    if strata is None:
        drawn = generator.permutation(rows)
        held_out = drawn[:count] if groups is None else _fitting(drawn, count, heads, sizes)
    else:
        _, values = np.unique(np.array([str(strata[row]) for row in rows]), return_inverse=True)
        if groups is not None:  # all rows of a group count for the value of its first one
            values = values[np.searchsorted(rows, members)]
        shares = shares_of(np.bincount(values), count)
        permuted = [generator.permutation(rows[values == value]) for value in range(len(shares))]
        parts = [
            drawn[:share] if groups is None else _fitting(drawn, int(share), heads, sizes)
            for drawn, share in zip(permuted, shares, strict=True)
        ]
        held_out = np.concatenate(parts)
    if groups is not None:
        if not len(held_out):  # each group is larger than what is asked for
            held_out = heads[[int(np.argmin(sizes))]]
        held_out = rows[np.isin(members, held_out)]
    return np.sort(held_out)


def _grouped(rows: Integers, groups: Integers) -> tuple[Integers, Integers, Integers]:
    """The first of the rows of each group and the number of its rows, by the rows; and of each row the first of its group."""
    _, first, of_row, sizes = np.unique(groups[rows], return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    return rows[first[order]], sizes[order], rows[first[of_row]]


def _fitting(drawn: Integers, count: int, heads: Integers, sizes: Integers) -> Integers:
    """The first rows of the groups that together have at most `count` rows, in the order in which they are drawn.

    Only the first row of a group draws it, so that a large group is not drawn more often than a small one.
    """
    places = np.minimum(np.searchsorted(heads, drawn), len(heads) - 1)
    first = heads[places] == drawn
    chosen = []
    for head, size in zip(drawn[first].tolist(), sizes[places[first]].tolist(), strict=True):
        if size <= count:
            chosen.append(head)
            count -= size
        if not count:
            break
    return np.array(chosen, np.int64)


def shares_of(counts: Integers, count: int) -> Integers:
    """`count` rows as shares of groups of `counts` rows."""
    wanted = counts * (count / max(int(counts.sum()), 1))
    shares: Integers = np.floor(wanted).astype(int)
    # The rows left by rounding down go to the groups with the largest remainder.
    shares[np.argsort(shares - wanted, kind="stable")[: count - shares.sum()]] += 1
    return shares


def _generator(seed: int, purpose: int, number: int = 0) -> np.random.Generator:
    """A generator for a purpose, and of several data sets for the one with this number."""
    return np.random.Generator(np.random.PCG64([seed, 0, purpose, *([number] if number else [])]))

"""Compares two sets of scores of the same rows: the mean difference with its interval, and whether it is shown.

A difference counts as shown if the 95% interval of the paired differences excludes 0. Of scores from 0 to 1 this interval
(training/scoring/intervals.py) holds at any number of rows. Other scores have no known bounds: their bootstrap interval is too
narrow with few rows, so a sign-flip test (a paired randomization test: Noreen, "Computer-Intensive Methods for Testing Hypotheses",
1989) must also have p < 0.05, two-sided.

The number of rows that would show a difference d with a power of 80% is the smallest at which that same interval excludes 0 for
rows like these whose mean difference is lower than d by z_0.8 standard errors. Of scores without bounds it is the sample size of a
paired z-test, n = (z_0.975 + z_0.8)^2 * v / d^2, where v is the variance of the differences.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from statistics import NormalDist
from typing import Any

import numpy as np

from training.scoring.intervals import ALPHA, Scores, blocks, bootstrap, bounded, is_above_zero, is_share, quantile

POWER = 0.8
SMALL_DIFFERENCE = 0.02
"""The difference for which the needed rows are stated: 2 points of a score from 0 to 1."""

_SEED = 20_240
_FLIPS = 4_000
_MOST_VALUES = 500  # different differences from which the rows that would show one are computed
_MOST_DRAWS = 40_000_000  # of signs: a second; beyond, the normal approximation is the same


class Verdict(StrEnum):
    """What the scores show about the second of two models."""

    BETTER = "better"
    WORSE = "worse"
    NONE = "no difference shown"


@dataclass(frozen=True)
class Paired:
    """The second scores minus the first, over `rows` rows; `low` to `high` is the 95% interval of the mean `difference`.

    `rows_needed` would show a difference of 2 points with a power of 80%; None if no row differs. `common` rows were answered by
    both, of which `rows` have a score of both.
    """

    rows: int
    difference: float
    low: float
    high: float
    verdict: Verdict
    rows_needed: int | None
    common: int = 0

    def document(self) -> dict[str, Any]:
        """The values for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> "Paired":
        """The comparison from its JSON form; ignores values that earlier versions wrote."""
        values = {field.name: document[field.name] for field in fields(cls) if field.name != "common"}
        return cls(
            **values | {"common": document.get("common", document["rows"]), "verdict": Verdict(document["verdict"])}
        )


def compare(
    first: Sequence[float] | Scores,
    second: Sequence[float] | Scores,
    *,
    lower_is_better: bool = False,
    unbounded: bool = False,
) -> Paired:
    """Compares two scores of each row, in the same order. The result is the same at each call. `unbounded` scores could lie
    outside of 0 to 1, also if none does.

    Raises:
        ValueError: there are no rows, or the numbers of rows differ.
    """
    before, after = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise ValueError(f"paired scores need the same rows, at least one: {before.shape} and {after.shape}")
    differences = after - before
    mean = float(differences.mean())
    shares = not unbounded and is_share(before) and is_share(after)
    low, high = bounded(differences, -1.0, 1.0) if shares else bootstrap(differences)
    shown = not low <= 0 <= high and (shares or sign_flip(differences) < ALPHA)
    verdict = (Verdict.BETTER if (mean > 0) != lower_is_better else Verdict.WORSE) if shown else Verdict.NONE
    rows = len(differences)
    return Paired(rows, mean, low, high, verdict, rows_needed(differences, shares=shares), rows)


def sign_flip(differences: Scores) -> float:
    """The two-sided p-value of the sign-flip test: exact if all differences have the same size."""
    changed = np.abs(differences[differences != 0])
    if not len(changed):
        return 1.0
    if np.allclose(changed, changed[0]):
        return _binomial(int(np.count_nonzero(differences > 0)), len(changed))
    total = abs(float(differences.sum())) * (1 - 1e-12)
    if len(changed) * _FLIPS > _MOST_DRAWS:
        return 2 * (1 - NormalDist().cdf(total / math.sqrt(float((changed**2).sum()))))
    random = np.random.Generator(np.random.PCG64(_SEED))
    extreme = 0
    for count in blocks(_FLIPS, len(changed)):
        signs = random.integers(2, size=(count, len(changed)), dtype=np.int8) * 2.0 - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ changed) >= total))
    return (1 + extreme) / (1 + _FLIPS)


def rows_needed(differences: Scores, difference: float = SMALL_DIFFERENCE, *, shares: bool = True) -> int | None:
    """The rows that would show a mean `difference`; None if no row differs. `shares`: of scores from 0 to 1."""
    if not differences.any():
        return None
    if not shares:
        variance = float(differences.var(ddof=1)) if len(differences) > 1 else 0.0
        return math.ceil((quantile(1 - ALPHA / 2) + quantile(POWER)) ** 2 * variance / difference**2) or None
    values, weights = _distribution(differences)
    low, high = 0, 1
    while not _shows(values, weights, difference, high):
        low, high = high, 2 * high
    while high - low > 1:
        rows = (low + high) // 2
        low, high = (low, rows) if _shows(values, weights, difference, rows) else (rows, high)
    return high


def _distribution(differences: Scores) -> tuple[Scores, Scores]:
    """The different values, each with its share. Of more than `_MOST_VALUES` neighbors are one, their mean."""
    values, counts = np.unique(differences, return_counts=True)
    if len(values) > _MOST_VALUES:
        groups = np.array_split(np.sort(differences), _MOST_VALUES)
        values, counts = np.array([group.mean() for group in groups]), np.array([len(group) for group in groups])
    return values, counts / counts.sum()


def _shows(values: Scores, weights: Scores, difference: float, rows: int) -> bool:
    """True if `rows` rows would show a mean difference also where their own is lower by z_0.8 standard errors."""
    assumed, shares = _with_mean(values, weights, difference)
    deviation = math.sqrt(float(shares @ (assumed - difference) ** 2))
    own = difference - quantile(POWER) * deviation / math.sqrt(rows)
    if own <= 0:
        return False
    assumed, shares = _with_mean(values, weights, own)
    return is_above_zero(assumed, shares * rows, -1.0)


def _with_mean(values: Scores, weights: Scores, mean: float) -> tuple[Scores, Scores]:
    """Differences of scores from 0 to 1 like these with another mean, and the share of each.

    Of right and wrong answers as many change as here, or as the mean needs; other scores all change by the same.
    """
    if np.isin(values, (-1.0, 0.0, 1.0)).all():
        changed = max(float(weights[values != 0].sum()), mean)
        return np.array([-1.0, 0.0, 1.0]), np.array([(changed - mean) / 2, 1 - changed, (changed + mean) / 2])
    return np.clip(values + mean - float(values @ weights), -1.0, 1.0), weights


def _binomial(positive: int, changed: int) -> float:
    """The exact two-sided p-value of `positive` of `changed` signs, each equally likely."""
    tail = sum(math.comb(changed, count) for count in range(min(positive, changed - positive) + 1))
    return float(min(1.0, 2 * tail / 2**changed))


def in_words(found: Paired, *, share: bool = True) -> str:
    """For example "better by 5.0 points (95% interval +2.1 to +7.9, 500 rows)".

    Without a difference: "no difference shown at 160 rows (95% interval -1.9 to +4.4 points); about 1,200 would show 2 points".
    Scores that are no share of 1 (`share` is False) have no points.
    """
    if not share:
        return _in_numbers(found)
    span = f"95% interval {signed(found.low)} to {signed(found.high)}"
    if found.verdict is not Verdict.NONE:
        return f"{found.verdict.value} by {points(abs(found.difference))} points ({span}, {_rows(found)})"
    shown = f"{found.verdict.value} at {_rows(found)}"
    if found.rows_needed is None:
        return f"{shown}: the scores of all rows are equal ({span} points)"
    shown += f" ({span} points)"
    if found.rows_needed <= found.rows:
        return shown
    return f"{shown}; about {_rounded(found.rows_needed):,} would show {points(SMALL_DIFFERENCE, 0)} points"


def _in_numbers(found: Paired) -> str:
    span = f"95% interval {found.low:+.4g} to {found.high:+.4g}"
    if found.verdict is Verdict.NONE:
        return f"{found.verdict.value} at {_rows(found)} ({span})"
    return f"{found.verdict.value} by {abs(found.difference):.4g} ({span}, {_rows(found)})"


def points(share: float, decimals: int = 1) -> str:
    """A difference of scores from 0 to 1 in points, which are percentage points."""
    return f"{100 * share:.{decimals}f}"


def signed(share: float) -> str:
    """The same with its sign."""
    return f"{100 * share + 0.0:+.1f}"


def _rows(found: Paired) -> str:
    of = f" of {found.common:,}" if found.common > found.rows else ""
    return f"{found.rows:,}{of} row{'' if max(found.rows, found.common) == 1 else 's'}"


def _rounded(number: int) -> int:
    """The number with two significant digits."""
    unit: int = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return round(number / unit) * unit

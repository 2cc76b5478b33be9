"""Compares two sets of scores of the same rows: the mean difference with its interval, and whether it is shown.

The 95% interval is a percentile interval of the paired bootstrap over rows (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993, chapter 13). With few rows, or few rows that differ, such an interval is too narrow. A difference therefore counts
as shown only if a sign-flip test (a paired randomization test: Noreen, "Computer-Intensive Methods for Testing Hypotheses", 1989)
also has p < 0.05, two-sided. For scores of 0 and 1 it is the exact McNemar test.

The number of rows that would show a difference d is n = (z_0.975 + z_0.8)^2 * v / d^2, where v is the variance of the differences:
the sample size of a paired z-test with 5% false alarms and a power of 80%.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
ALPHA = 1 - LEVEL
POWER = 0.8
SMALL_DIFFERENCE = 0.02
"""The difference for which the needed rows are stated: 2 points of a score from 0 to 1."""

_SEED = 20_240
_RESAMPLES = 4_000
_FLIPS = 4_000
_MOST_DRAWS = 40_000_000  # of a resampling: seconds of time; beyond, the normal interval is the same
_BLOCK = 1_000_000
_FEW_VALUES = 50

Scores = NDArray[np.float64]


class Verdict(StrEnum):
    """What the scores show about the second of two models."""

    BETTER = "better"
    WORSE = "worse"
    NONE = "no difference shown"


@dataclass(frozen=True)
class Paired:
    """The second scores minus the first, over `rows` rows; `low` to `high` is the 95% interval of the mean `difference`.

    `rows_needed` would show a difference of 2 points with a power of 80%; None if no row differs.
    """

    rows: int
    difference: float
    low: float
    high: float
    p_value: float
    verdict: Verdict
    rows_needed: int | None

    def document(self) -> dict[str, Any]:
        """The values for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> "Paired":
        """The comparison from its JSON form."""
        return cls(**(document | {"verdict": Verdict(document["verdict"])}))


def compare(
    first: Sequence[float] | Scores, second: Sequence[float] | Scores, *, lower_is_better: bool = False
) -> Paired:
    """Compares two scores of each row, in the same order. The result is the same at each call.

    Raises:
        ValueError: there are no rows, or the numbers of rows differ.
    """
    before, after = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise ValueError(f"paired scores need the same rows, at least one: {before.shape} and {after.shape}")
    differences = after - before
    mean = float(differences.mean())
    low, high = interval(differences)
    p_value = sign_flip(differences)
    shown = p_value < ALPHA and not low <= 0 <= high
    verdict = (Verdict.BETTER if (mean > 0) != lower_is_better else Verdict.WORSE) if shown else Verdict.NONE
    return Paired(len(differences), mean, low, high, p_value, verdict, rows_needed(differences))


def interval(differences: Scores) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of the mean; of more than 10,000 rows the normal interval, which is then the same."""
    rows = len(differences)
    if rows * _RESAMPLES > _MOST_DRAWS:
        margin = _z(1 - ALPHA / 2) * float(differences.std(ddof=1)) / math.sqrt(rows)
        return float(differences.mean()) - margin, float(differences.mean()) + margin
    low, high = np.quantile(_resampled_means(differences), (ALPHA / 2, 1 - ALPHA / 2))
    return float(low), float(high)


def _resampled_means(differences: Scores) -> Scores:
    rows, random = len(differences), np.random.Generator(np.random.PCG64(_SEED))
    values, counts = np.unique(differences, return_counts=True)
    if len(values) <= _FEW_VALUES:  # how often each value is drawn
        return random.multinomial(rows, counts / rows, size=_RESAMPLES) @ values / rows
    drawn = (random.integers(rows, size=(count, rows), dtype=np.uint32) for count in _blocks(_RESAMPLES, rows))
    return np.concatenate([differences[rows_drawn].mean(axis=1) for rows_drawn in drawn])


def mean_interval(scores: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of a mean score: Wilson's (1927) of scores of 0 and 1, else that of `interval`."""
    values = np.asarray(scores, np.float64)
    if not np.isin(values, (0.0, 1.0)).all():
        return interval(values)
    rows, share, z = len(values), float(values.mean()), _z(1 - ALPHA / 2)
    center = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    margin = z / (1 + z**2 / rows) * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return max(0.0, center - margin), min(1.0, center + margin)


def sign_flip(differences: Scores) -> float:
    """The two-sided p-value of the sign-flip test: exact if all differences have the same size, as of scores of 0 and 1."""
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
    for count in _blocks(_FLIPS, len(changed)):
        signs = random.integers(2, size=(count, len(changed)), dtype=np.int8) * 2.0 - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ changed) >= total))
    return (1 + extreme) / (1 + _FLIPS)


def rows_needed(differences: Scores, difference: float = SMALL_DIFFERENCE) -> int | None:
    """The rows that would show a mean `difference`; None if no row differs.

    Scores of 0 and 1 cannot differ by d on average with a variance below d - d^2, which is then the variance used.
    """
    variance = float(differences.var(ddof=1)) if len(differences) > 1 else 0.0
    if np.isin(differences, (-1.0, 0.0, 1.0)).all() and differences.any():
        variance = max(variance, difference - difference**2)
    if not variance:
        return None
    return math.ceil((_z(1 - ALPHA / 2) + _z(POWER)) ** 2 * variance / difference**2)


def _binomial(positive: int, changed: int) -> float:
    """The exact two-sided p-value of `positive` of `changed` signs, each equally likely."""
    tail = sum(math.comb(changed, count) for count in range(min(positive, changed - positive) + 1))
    return float(min(1.0, 2 * tail / 2**changed))


def _blocks(resamples: int, rows: int) -> list[int]:
    """The resamples in parts of which each takes little memory."""
    size = max(1, _BLOCK // rows)
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def _z(probability: float) -> float:
    return NormalDist().inv_cdf(probability)

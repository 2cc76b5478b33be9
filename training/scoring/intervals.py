"""95% intervals of the mean of few scores.

Of scores in a known range it is Gaffke's interval (Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on
the mean of a nonnegative variable", 2005; Learned-Miller and Thomas, "A new confidence interval for the mean of a bounded
random variable", 2019): the upper end is a quantile of the mean of the n scores and the largest possible one, weighted by
uniformly random weights that add up to 1 (Dirichlet), the lower end one with the smallest possible score. No sample is known
for which its coverage is below the level, at any number of rows. Of scores of 0 and 1 it is Clopper and Pearson's exact
interval, and the interval of paired differences of such scores excludes 0 exactly if McNemar's exact test has p < 0.05.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
ALPHA = 1 - LEVEL

_SEED = 20_240
_DRAWS = 10_000
_RESAMPLES = 4_000
_MANY_NUMBERS = 2_000_000  # random numbers; with more, there are fewer draws
_MOST_NUMBERS = 40_000_000  # a second; beyond, the normal interval is the same
_BLOCK = 1_000_000
_FEW_VALUES = 50

Scores = NDArray[np.float64]


def mean_interval(scores: Sequence[float] | Scores) -> tuple[float, float]:
    """The interval of a mean: `bounded` of scores from 0 to 1, else `bootstrap`."""
    values = np.asarray(scores, np.float64)
    return bounded(values, 0.0, 1.0) if is_share(values) else bootstrap(values)


def is_share(values: Scores) -> bool:
    """True if all scores lie from 0 to 1."""
    return bool(((values >= 0) & (values <= 1)).all())


def bounded(values: Scores, smallest: float, largest: float) -> tuple[float, float]:
    """Gaffke's 95% interval of the mean of values that cannot lie outside `smallest` to `largest`. The same at each call."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) * _RESAMPLES > _MOST_NUMBERS:
        return _normal(values)
    draws = max(_RESAMPLES, min(_DRAWS, _MANY_NUMBERS // len(distinct)))
    random = np.random.Generator(np.random.PCG64(_SEED))
    outside = random.standard_exponential(draws)
    sums, totals = np.zeros(draws), outside.copy()
    for repeats in (False, True):
        chosen = (counts > 1) == repeats
        for part in np.array_split(np.flatnonzero(chosen), -(-chosen.sum() * draws // _BLOCK) or 1):
            weights = _weights(random, counts[part], draws)
            sums += weights @ distinct[part]
            totals += weights.sum(axis=1)
    low = np.quantile((sums + outside * smallest) / totals, ALPHA / 2, method="lower")
    high = np.quantile((sums + outside * largest) / totals, 1 - ALPHA / 2, method="higher")
    return float(low), float(high)


def _weights(random: np.random.Generator, counts: NDArray[np.int64], draws: int) -> Scores:
    """Random weights of distinct values, of shape (draws, values).

    Uniform weights that add up to 1 are exponential variables divided by their sum; of equal values they add up to gamma
    variables.
    """
    shape = draws, len(counts)
    return random.standard_gamma(counts, shape) if (counts > 1).any() else random.standard_exponential(shape)


def bootstrap(values: Scores) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of a mean, for scores without known bounds. With few rows it is too narrow.

    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    """
    if len(values) * _RESAMPLES > _MOST_NUMBERS:
        return _normal(values)
    low, high = np.quantile(_resampled_means(values), (ALPHA / 2, 1 - ALPHA / 2))
    return float(low), float(high)


def quantile(probability: float) -> float:
    """The quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(probability)


def _normal(values: Scores) -> tuple[float, float]:
    mean, margin = float(values.mean()), quantile(1 - ALPHA / 2) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - margin, mean + margin


def _resampled_means(values: Scores) -> Scores:
    rows, random = len(values), np.random.Generator(np.random.PCG64(_SEED))
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= _FEW_VALUES:  # how often each value is drawn
        return random.multinomial(rows, counts / rows, size=_RESAMPLES) @ distinct / rows
    drawn = (random.integers(rows, size=(count, rows), dtype=np.uint32) for count in blocks(_RESAMPLES, rows))
    return np.concatenate([values[rows_drawn].mean(axis=1) for rows_drawn in drawn])


def blocks(resamples: int, rows: int) -> list[int]:
    """The resamples in parts of which each takes little memory."""
    size = max(1, _BLOCK // rows)
    return [min(size, resamples - start) for start in range(0, resamples, size)]

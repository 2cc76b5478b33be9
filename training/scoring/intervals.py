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
_RESAMPLES = 4_000
_MOST_NUMBERS = 40_000_000  # a second; beyond, the normal interval is the same
_BLOCK = 1_000_000
_FEW_VALUES = 50
_MOST_VALUES = 1_000  # different scores; neighbors among more are rounded outward together
_FARTHEST, _PRECISION = 12.0, 1e-9  # of a quantile from the mean, in standard deviations; of its value
# Double exponential quadrature from 0 to infinity (Takahasi and Mori, 1974), of integrands divided by their variable.
_GRID = np.linspace(-4.0, 3.0, 561)
_NODES = np.exp(math.pi / 2 * np.sinh(_GRID))
_NODE_WEIGHTS = math.pi / 2 * np.cosh(_GRID) * (_GRID[1] - _GRID[0])
_EVERY = 4  # node for many values, whose integrand is smooth: the interval changes by less than 1e-6

Scores = NDArray[np.float64]


def mean_interval(scores: Sequence[float] | Scores, *, unbounded: bool = False) -> tuple[float, float]:
    """The interval of a mean: `bounded` of scores from 0 to 1, else `bootstrap`. `unbounded`: they could lie elsewhere."""
    values = np.asarray(scores, np.float64)
    return bounded(values, 0.0, 1.0) if is_share(values) and not unbounded else bootstrap(values)


def is_share(values: Scores) -> bool:
    """True if all scores lie from 0 to 1."""
    return bool(((values >= 0) & (values <= 1)).all())


def bounded(values: Scores, smallest: float, largest: float) -> tuple[float, float]:
    """Gaffke's 95% interval of the mean of values that cannot lie outside `smallest` to `largest`, computed without drawing."""
    below, above, counts = _neighbors(values)
    counts = np.append(counts, 1)
    low = _weighted_quantile(np.append(below, smallest), counts, ALPHA / 2)
    return low, _weighted_quantile(np.append(above, largest), counts, 1 - ALPHA / 2)


def is_above_zero(values: Scores, counts: Scores, smallest: float) -> bool:
    """True if the interval of values from `smallest` lies above 0. `counts` says how often each occurs, also in parts."""
    return _share_below(np.append(values, smallest), np.append(counts, 1.0)) <= ALPHA / 2


def _neighbors(values: Scores) -> tuple[Scores, Scores, NDArray[np.int64]]:
    """The different values, with their numbers. More than `_MOST_VALUES` are grouped with their neighbors, and each group is
    rounded down, and up: an interval of these contains that of the values, and is wider by at most a thousandth of their range."""
    distinct, counts = np.unique(values, return_counts=True)
    first = np.unique(np.linspace(0, len(distinct), min(len(distinct), _MOST_VALUES), endpoint=False).astype(np.int64))
    last = np.append(first[1:], len(distinct)) - 1
    return distinct[first], distinct[last], np.add.reduceat(counts, first)


def _weighted_quantile(points: Scores, counts: Scores | NDArray[np.int64], probability: float) -> float:
    """A quantile of the mean of points with random weights that are uniform and add up to 1; `counts` points are equal."""
    mean = float(np.average(points, weights=counts))
    deviation = math.sqrt(float(np.average((points - mean) ** 2, weights=counts)) / counts.sum())
    low = max(float(points.min()), mean - _FARTHEST * deviation)
    high = min(float(points.max()), mean + _FARTHEST * deviation)
    below, above, side = -probability, 1 - probability, 0  # what is missing at both ends
    while high - low > _PRECISION * max(abs(low), abs(high), 1.0) and below and above:
        middle = high - above * (high - low) / (above - below)  # false position, by the Illinois rule
        missing = _share_below(points - middle, counts) - probability
        if missing < 0:
            low, below, above, side = middle, missing, above / 2 if side < 0 else above, -1
        else:
            high, above, below, side = middle, missing, below / 2 if side > 0 else below, 1
        if abs(missing) < _PRECISION:
            return middle
    return (low + high) / 2


def _share_below(distances: Scores, counts: Scores | NDArray[np.int64]) -> float:
    """The probability that the weighted mean of the distances is below 0.

    Weights are exponential variables divided by their sum, so it is that of a sum of gamma variables times the distances, by its
    characteristic function (Imhof, "Computing the distribution of quadratic forms in normal variables", 1961).
    """
    every = _EVERY if len(distances) > _FEW_VALUES else 1
    nodes, weights = _NODES[::every], _NODE_WEIGHTS[::every] * every
    scaled = distances / math.sqrt(float((counts * distances**2).sum())) if distances.any() else distances
    angle, decay = np.zeros(len(nodes)), np.zeros(len(nodes))
    for part in np.array_split(np.arange(len(scaled)), -(-len(scaled) * len(nodes) // _BLOCK)):
        turned = np.outer(scaled[part], nodes)
        angle += counts[part] @ np.arctan(turned)
        decay += counts[part] @ np.log1p(turned**2) / 2
    return 0.5 - float((np.sin(angle) * np.exp(-decay) * weights).sum()) / math.pi


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

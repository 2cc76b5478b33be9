"""`python -m benchmarks.intervals`: how often 95% intervals of a mean contain it, and how wide they are, by the number of rows.

Scores lie from 0 to 1. It prints a table for each kind of scores: coverage in percent and mean width in points. An interval holds
if its coverage is 95% or more everywhere.
"""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from training.scoring.intervals import Scores, bootstrap, bounded

ROWS = (3, 5, 10, 50, 200)
SAMPLES = 300
ALPHA = 0.05
_GRID = np.linspace(0, 1, 1001)
_Z = NormalDist().inv_cdf(1 - ALPHA / 2)

Interval = Callable[[Scores], tuple[float, float]]


def gaffke(values: Scores) -> tuple[float, float]:
    return bounded(values, 0.0, 1.0)


def wilson(values: Scores) -> tuple[float, float]:
    """Wilson (1927), of a share; it takes the mean of other scores for one."""
    rows, share = len(values), float(values.mean())
    center = (share + _Z**2 / (2 * rows)) / (1 + _Z**2 / rows)
    margin = _Z / (1 + _Z**2 / rows) * math.sqrt(share * (1 - share) / rows + _Z**2 / (4 * rows**2))
    return center - margin, center + margin


def hoeffding(values: Scores) -> tuple[float, float]:
    """Hoeffding (1963)."""
    margin = math.sqrt(math.log(2 / ALPHA) / (2 * len(values)))
    return max(0.0, values.mean() - margin), min(1.0, values.mean() + margin)


def bernstein(values: Scores) -> tuple[float, float]:
    """Maurer and Pontil, "Empirical Bernstein bounds", 2009, theorem 4, on both sides."""
    rows, logarithm = len(values), math.log(4 / ALPHA)
    margin = math.sqrt(2 * values.var(ddof=1) * logarithm / rows) + 7 * logarithm / (3 * (rows - 1))
    return max(0.0, values.mean() - margin), min(1.0, values.mean() + margin)


def betting(values: Scores) -> tuple[float, float]:
    """Hedged capital: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2023, theorem 3."""
    rows = len(values)
    steps = np.arange(1, rows + 1)
    means = (0.5 + np.cumsum(values)) / (steps + 1)
    variances = (0.25 + np.cumsum((values - means) ** 2)) / (steps + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    bets = np.sqrt(2 * math.log(2 / ALPHA) / (before * rows))[:, None]
    gains = values[:, None] - _GRID
    with np.errstate(divide="ignore"):
        up = np.minimum(bets, 0.5 / np.maximum(_GRID, 1e-12))
        down = np.minimum(bets, 0.5 / np.maximum(1 - _GRID, 1e-12))
        capital = np.maximum(np.cumprod(1 + up * gains, 0), np.cumprod(1 - down * gains, 0)) / 2
    inside = _GRID[(capital < 1 / ALPHA).all(axis=0)]
    return (float(inside[0]), float(inside[-1])) if len(inside) else (values.mean(), values.mean())


def _f1(random: np.random.Generator, rows: int) -> Scores:
    return np.where(random.random(rows) < 0.4, 0.0, np.where(random.random(rows) < 0.5, 1.0, random.beta(2, 2, rows)))


KINDS: dict[str, tuple[float, Callable[[np.random.Generator, int], Scores]]] = {
    "right or wrong, 90% right": (0.9, lambda random, rows: (random.random(rows) < 0.9).astype(float)),
    "right or wrong, 50% right": (0.5, lambda random, rows: (random.random(rows) < 0.5).astype(float)),
    "token F1: 40% zeros, 30% ones": (0.45, _f1),
}
INTERVALS: dict[str, Interval] = {
    "Gaffke": gaffke, "betting": betting, "empirical Bernstein": bernstein, "Hoeffding": hoeffding,
    "bootstrap": bootstrap, "Wilson": wilson,
}  # fmt: skip


def measured(interval: Interval, kind: str, rows: int) -> tuple[float, float]:
    """The share of samples whose interval contains the true mean, and the mean width."""
    mean, draw = KINDS[kind]
    random = np.random.default_rng(rows)
    found = [interval(draw(random, rows)) for _ in range(SAMPLES)]
    return float(np.mean([low <= mean <= high for low, high in found])), float(np.mean([b - a for a, b in found]))


def main() -> None:
    """Prints the tables."""
    for kind in KINDS:
        print(f"{kind}: coverage in %, mean width in points")
        print(f"{'rows':>20}" + "".join(f"{rows:>14,}" for rows in ROWS))
        for name, interval in INTERVALS.items():
            cells = (measured(interval, kind, rows) for rows in ROWS)
            print(f"{name:>20}" + "".join(f"{100 * share:>8.1f}{100 * width:>6.0f}" for share, width in cells))


if __name__ == "__main__":
    main()

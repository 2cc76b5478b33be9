"""Order and intervals of results. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95% quantiles of Student's t distribution for 1, 2, ... degrees of freedom; a sweep has at most 20 seeds.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """A mean over `n` seeds with its 95% t interval; `low` and `high` are None with one seed."""

    mean: float
    n: int
    low: float | None = None
    high: float | None = None

    @property
    def includes_zero(self) -> bool:
        """True if the interval includes 0, or is unknown."""
        return self.low is None or self.high is None or self.low <= 0 <= self.high


def sort_key(value: float | None, *, maximize: bool) -> float:
    """A key that sorts the best value first, and missing and not finite ones last."""
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if maximize else value


def interval(values: Sequence[float]) -> Interval | None:
    """The mean of finite values with its interval; None without values."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Interval(mean, 1)
    half = _T95[min(n - 1, len(_T95)) - 1] * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, n, mean - half, mean + half)


def difference(first: dict[int, float], second: dict[int, float]) -> Interval | None:
    """The mean of second minus first over the seeds that both have, with its interval: seeds are paired. None without any."""
    return interval([second[seed] - first[seed] for seed in first if seed in second])

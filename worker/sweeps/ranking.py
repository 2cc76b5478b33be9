"""Order and intervals of a sweep's results, and which configurations continue at a rung. Pure.

The rule of successive halving is that of ASHA (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020):
of those that reached a rung so far, the best 1/factor continue. It differs in the order: nothing continues while a configuration
of the sweep still waits for a device, so on one device the rule decides as successive halving does (Jamieson and Talwalkar,
AISTATS 2016), with all results of a rung, and on several devices none is idle.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

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


class RankState(StrEnum):
    """What the runs of a configuration do: `waiting` for a device, `held` by a user, or `paused` at a rung."""

    WAITING = "waiting"
    HELD = "held"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


@dataclass(frozen=True)
class Contender:
    """A configuration: its number, its state, the step at which it pauses (None: it trains to its end), and its value at each
    rung that it has reached; None for a value that is missing or not finite, which ranks last."""

    number: int
    state: RankState
    pause_at: int | None
    values: dict[int, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The configurations that continue, each with the next step at which it pauses, and those that are stopped."""

    promoted: dict[int, int] = field(default_factory=dict)
    stopped: tuple[int, ...] = ()


def decide(contenders: Sequence[Contender], factor: int, *, maximize: bool = False) -> Decision:
    """What happens to the paused configurations now. The same state gives the same decision, however often it is made."""
    if any(contender.state is RankState.WAITING for contender in contenders):
        return Decision()
    promoted: dict[int, int] = {}
    stopped: list[int] = []
    for rung in sorted(
        {contender.pause_at for contender in contenders if contender.state is RankState.PAUSED and contender.pause_at}
    ):
        reached = [contender for contender in contenders if rung in contender.values]
        complete = all(rung in contender.values or contender.state is RankState.ENDED for contender in contenders)
        quota = max(len(reached) // factor, 1 if complete else 0)
        live = [
            contender
            for contender in reached
            if not (contender.state is RankState.ENDED and contender.pause_at == rung)
        ]
        live.sort(key=lambda contender: (sort_key(contender.values[rung], maximize=maximize), contender.number))
        best = live[:quota]
        here = [contender for contender in live if contender.state is RankState.PAUSED and contender.pause_at == rung]
        promoted |= {contender.number: rung * factor for contender in here if contender in best}
        if complete:
            stopped += [contender.number for contender in here if contender not in best]
    return Decision(promoted, tuple(stopped))

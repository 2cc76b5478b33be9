"""The generalization gap: by how much more training has raised the score of rows that were trained on than that of held-out rows.

The gain on each set of rows is the mean of paired differences (training/scoring/paired.py), so that rows which are harder than
others do not make a gap. The sets are independent of each other, and the interval of the gap is made of both their intervals: Zou
and Donner, "Construction of confidence limits about effect measures: a general approach", 2008. The training rows are all there
are: where n of N were answered, the interval of their gain is sqrt((N - n) / (N - 1)) as wide (finite population correction).
"""

import math
from dataclasses import dataclass

from training.scoring.paired import Paired, signed


@dataclass(frozen=True)
class Gap:
    """The gain on training rows minus that on held-out rows, with its 95% interval."""

    trained: Paired
    held_out: Paired
    low: float
    high: float

    @property
    def difference(self) -> float:
        """The generalization gap, as far as the answered rows show it."""
        return self.trained.difference - self.held_out.difference


def gap(trained: Paired, held_out: Paired, training_rows: int) -> Gap:
    """Returns the gap between the gains on some of `training_rows` rows and on held-out rows."""
    others = math.sqrt(max(training_rows - trained.rows, 0) / max(training_rows - 1, 1))
    gain, other = trained.difference, held_out.difference
    low = math.hypot(others * (gain - trained.low), held_out.high - other)
    high = math.hypot(others * (trained.high - gain), other - held_out.low)
    return Gap(trained, held_out, gain - other - low, gain - other + high)


def in_words(found: Gap) -> str:
    """For example "+95.8 points on 24 training rows and +70.8 points on 160 held-out rows: a gap of +25.0 points (95%
    interval +18.0 to +32.6)"."""
    trained, held_out = (f"{signed(one.difference)} points on {one.rows:,}" for one in (found.trained, found.held_out))
    span = f"95% interval {signed(found.low)} to {signed(found.high)}"
    return f"{trained} training rows and {held_out} held-out rows: a gap of {signed(found.difference)} points ({span})"

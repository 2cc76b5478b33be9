"""Tests of the generalization gap: when it is shown, and how often its interval contains it, by simulation."""

import numpy as np
import pytest
from subtest_table import table

from training.scoring.generalization import gap, in_words
from training.scoring.intervals import bounded
from training.scoring.paired import Paired, Verdict

SAMPLES = 200
LEAST = 0.95 - 3 * (0.05 * 0.95 / SAMPLES) ** 0.5  # three standard errors below the level


def gain(before, after):
    """As `compare` finds it, which also computes the rows that would show one."""
    differences = np.subtract(after, before)
    low, high = bounded(differences, -1.0, 1.0)
    return Paired(len(differences), float(differences.mean()), low, high, Verdict.NONE, None)


def right(count, rows):
    return [1.0] * count + [0.0] * (rows - count)


def test_where_all_training_rows_are_answered_only_the_held_out_gain_is_uncertain():
    trained, held_out = gain(right(0, 12), right(12, 12)), gain(right(0, 24), right(2, 24))
    found = gap(trained, held_out, 12)
    assert (found.low, found.high) == pytest.approx((1 - held_out.high, 1 - held_out.low))
    of_more = gap(trained, held_out, 1200)
    assert of_more.difference == found.difference and 0.3 < of_more.low < found.low


def test_rows_that_are_harder_before_and_after_training_make_no_gap():
    found = gap(gain(right(50, 100), right(90, 100)), gain(right(10, 100), right(50, 100)), 1000)
    assert found.difference == 0 and found.low < -0.05


def test_it_is_said_in_points_with_the_rows_of_both_sides():
    found = gap(gain(right(0, 24), right(24, 24)), gain(right(0, 1600), right(400, 1600)), 24)
    assert in_words(found) == (
        "+100.0 points on 24 training rows and +25.0 points on 1,600 held-out rows: a gap of +75.0 points "
        "(95% interval +72.8 to +77.2)"
    )


def graded(random, chances, rows):
    """Scores of models by their chances of a right answer: on each row the second one is often right where the first one is."""
    luck = random.random(rows)
    return [
        (np.where(random.random(rows) < 0.8, luck, random.random(rows)) < chance).astype(float) for chance in chances
    ]


def drifted(random, chances, rows):
    """Token F1 and the like: many at both ends, and some between."""
    return [np.clip(np.round(random.beta(0.5, 0.5, rows) + chance - 0.5, 1), 0, 1) for chance in chances]


@table(("rows", "others", "of"), [(10, 10, 10_000), (24, 160, 24), (200, 40, 400)])
@table("chances", [((0.0, 0.9), (0.0, 0.9)), ((0.3, 0.95), (0.2, 0.5)), ((0.02, 0.05), (0.01, 0.02))])
@table("draw", [graded, drifted])
@pytest.mark.nightly
def test_the_interval_contains_the_gap_in_95_percent_of_samples(draw, chances, rows, others, of):
    random = np.random.default_rng(rows + others)
    expected = np.diff(np.mean([draw(random, chances[1], 200_000)], axis=(0, 2)))[0]
    inside = 0
    for _ in range(SAMPLES):
        everything = draw(random, chances[0], of)
        drawn = random.choice(of, rows, replace=False)
        found = gap(gain(*(scores[drawn] for scores in everything)), gain(*draw(random, chances[1], others)), of)
        inside += found.low <= np.mean(everything[1]) - np.mean(everything[0]) - expected <= found.high
    assert inside / SAMPLES >= LEAST

"""Tests of intervals of a mean: their coverage by simulation."""

from math import comb

import numpy as np
import pytest
from subtest_table import table

from training.scoring.intervals import bootstrap, bounded, mean_interval

SAMPLES = 200
LEAST = 0.95 - 3 * (0.05 * 0.95 / SAMPLES) ** 0.5  # three standard errors below the level


def right(share):
    return share, lambda random, rows: (random.random(rows) < share).astype(float)


KINDS = {
    "90% right": right(0.9),
    "2% right": right(0.02),
    "rare": right(0.002),
    "F1": (
        0.525,
        lambda random, rows: random.choice([0.0, 0.25, 0.5, 0.75, 1.0], rows, p=[0.35, 0.05, 0.1, 0.15, 0.35]),
    ),
}


def coverage(interval, mean, draw, rows, samples=SAMPLES):
    random = np.random.default_rng(rows)
    found = [interval(draw(random, rows)) for _ in range(samples)]
    return np.mean([low <= mean <= high for low, high in found])


def thousandths(share):
    """Scores below 0.001, of which a `share` is 1 instead."""
    return 0.0005 * (1 - share) + share, lambda random, rows: np.where(
        random.random(rows) < share, 1.0, random.uniform(0, 0.001, rows)
    )


SHAPES = KINDS | {
    "half right": right(0.5),
    "uniform": (0.5, lambda random, rows: random.random(rows)),
    "rare ones": thousandths(0.001),
    "some ones": thousandths(0.02),
    "U": (0.5, lambda random, rows: random.beta(0.1, 0.1, rows)),
    "skewed": (1 / 11, lambda random, rows: random.beta(0.2, 2, rows)),
}


@table("rows", [10, 40, 160, 1200, 3000])
@table("kind", SHAPES)
@pytest.mark.nightly
def test_the_interval_holds_for_ten_shapes_of_scores_at_any_number_of_rows(kind, rows):
    assert coverage(mean_interval, *SHAPES[kind], rows) >= LEAST


@pytest.mark.slow
def test_the_interval_of_more_different_scores_than_are_computed_exactly_holds_where_a_few_count_most():
    """A normal interval contained the mean in 68 percent of such samples."""
    assert coverage(mean_interval, *thousandths(0.001), 1200, samples=40) >= 0.9


def test_more_different_scores_than_are_computed_exactly_are_rounded_outward(monkeypatch):
    scores = np.random.default_rng(4).random(900)
    exact = mean_interval(scores)
    monkeypatch.setattr("training.scoring.intervals._MOST_VALUES", 100)
    low, high = mean_interval(scores)
    assert exact[0] - 0.01 <= low <= exact[0] < exact[1] <= high <= exact[1] + 0.01


@table("rows", [3, 5, 10, 50, 200])
@table("kind", KINDS)
@pytest.mark.slow
def test_the_interval_of_a_mean_contains_it_in_95_percent_of_samples_at_any_number_of_rows(kind, rows):
    assert coverage(mean_interval, *KINDS[kind], rows) >= LEAST


@table("rows", [3, 5, 10, 50, 200])
@pytest.mark.slow
def test_the_interval_of_paired_differences_contains_the_true_one_in_95_percent_of_samples(rows):
    def draw(random, rows):
        return random.choice([1.0, 0.0, -1.0], rows, p=[0.12, 0.83, 0.05])

    assert coverage(lambda values: bounded(values, -1.0, 1.0), 0.07, draw, rows) >= LEAST


def test_a_bootstrap_interval_would_not():
    assert coverage(bootstrap, *KINDS["90% right"], 3) < 0.5


@table(("right", "rows", "low", "high"), [
    (1, 1, 0.025, 1.0), (3, 3, 0.2924017738, 1.0), (0, 30, 0.0, 0.1157033082), (17, 30, 0.3742734501, 0.7453924501),
    (450, 500, 0.8702909143, 0.9248641849),
])  # fmt: skip
def test_the_interval_of_right_and_wrong_answers_is_clopper_and_pearson_s_to_nine_digits(right, rows, low, high):
    assert mean_interval([1.0] * right + [0.0] * (rows - right)) == pytest.approx((low, high), abs=1e-9)


def test_an_interval_of_paired_differences_excludes_0_exactly_if_mcnemar_s_exact_test_has_p_below_5_percent():
    for right in range(13):
        for wrong in range(13):
            most = max(right, wrong)
            tail = sum(comb(right + wrong, count) for count in range(most, right + wrong + 1)) / 2 ** (right + wrong)
            low, high = bounded(np.array([1.0] * right + [-1.0] * wrong + [0.0] * 20), -1.0, 1.0)
            assert (low > 0 or high < 0) is (2 * tail < 0.05), (right, wrong)


def test_many_different_scores_and_more_rows_than_can_be_drawn_have_an_interval_too():
    random = np.random.default_rng(1)
    for rows in (700, 11_000):
        low, high = mean_interval(random.random(rows))
        assert high - low == pytest.approx(2 * 1.96 * (1 / 12 / rows) ** 0.5, rel=0.15)

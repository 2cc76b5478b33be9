"""Tests of the comparison of two models on the same rows."""

import math
import time

import numpy as np
import pytest
from subtest_table import table

from app.documents.results.evaluations import ScoredRows, paired
from training.scoring.intervals import is_above_zero
from training.scoring.paired import Paired, Verdict, compare, in_words, rows_needed, sign_flip

PAIRS = 200


def answered(random, rows, right, changed, gain=0.0):
    """Exact matches of two models: `right` of the rows before; a row changes with probability `changed`."""
    before = random.random(rows) < right
    flips = random.random(rows) < changed
    after = np.where(flips, random.random(rows) < right, before)
    after |= ~after & (random.random(rows) < gain / max(1e-9, 1 - right))
    return before.astype(float), after.astype(float)


def token_f1(random, rows):
    """Skewed scores with many zeros and ones, as token F1 has, of two equally good models."""
    base = np.clip(random.beta(0.5, 0.5, rows), 0.02, 0.98)
    before, after = (
        np.where(random.random(rows) < 0.4, np.round(base), random.beta(4 * base, 4 * (1 - base))) for _ in "ab"
    )
    return before, after


def test_scores_without_bounds_are_no_shares_also_if_all_lie_from_0_to_1():
    before, after = [0.1, 0.2, 0.4, 0.5], [0.3, 0.5, 0.6, 0.8]
    logits = compare(before, after, unbounded=True)
    doubled = compare([2 * score for score in before], [2 * score for score in after])
    assert (2 * logits.low, 2 * logits.high) == pytest.approx((doubled.low, doubled.high))
    assert logits.low > compare(before, after).low
    sides = (
        ScoredRows(
            {("d", row, "x"): {"model": score} for row, score in enumerate(scores)}, unbounded=frozenset({"model"})
        )
        for scores in (before, after)
    )
    assert paired(*sides).scores["model"].low == logits.low


@table("rows", [30, 160, 500])
@pytest.mark.slow
def test_of_200_pairs_of_equally_good_models_at_most_5_percent_are_called_better(rows):
    random = np.random.default_rng(rows)
    draws = [lambda: answered(random, rows, 0.6, 0.3), lambda: answered(random, rows, 0.9, 0.1)]
    if rows == 30:  # scores of many values take longer, and few rows are the difficult case
        draws.append(lambda: token_f1(random, rows))
    for draw in draws:
        verdicts = [compare(*draw()).verdict for _ in range(PAIRS)]
        assert verdicts.count(Verdict.BETTER) <= 0.05 * PAIRS
        assert verdicts.count(Verdict.WORSE) <= 0.05 * PAIRS


def test_a_gain_of_5_points_at_500_rows_is_called_better():
    random = np.random.default_rng(5)
    found = [compare(*answered(random, 500, 0.6, 0.06, gain=0.05)).verdict for _ in range(50)]
    assert found.count(Verdict.BETTER) >= 45
    assert Verdict.WORSE not in found


def test_a_loss_of_the_same_size_is_called_worse():
    before, after = answered(np.random.default_rng(5), 500, 0.6, 0.06, gain=0.05)
    assert compare(before, after).verdict is Verdict.BETTER
    assert compare(after, before).verdict is Verdict.WORSE
    assert compare(before, after, lower_is_better=True).verdict is Verdict.WORSE


@table(("better", "worse"), [(5, 0), (6, 0), (8, 1), (8, 2), (15, 4), (15, 5)])
def test_right_and_wrong_answers_differ_exactly_if_mcnemar_s_exact_test_says_so(better, worse):
    differences = np.array([1.0] * better + [-1.0] * worse + [0.0] * 91)
    p_value = 2 * sum(math.comb(better + worse, count) for count in range(worse + 1)) / 2 ** (better + worse)
    found = compare(np.maximum(-differences, 0), np.maximum(differences, 0)).verdict
    assert (found is Verdict.BETTER) == (p_value < 0.05)


def test_scores_without_bounds_also_need_the_sign_flip_test():
    """The bootstrap interval of five equal differences alone would be [7, 7]; the exact p-value is 0.0625."""
    found = compare([0.0] * 5, [7.0] * 5)
    assert (found.low, found.verdict) == (7.0, Verdict.NONE)
    assert sign_flip(np.array([7.0] * 8 + [-7.0])) == pytest.approx(2 * (1 + 9) / 2**9)
    assert compare([0.0] * 9, [7.0] * 8 + [-7.0]).verdict is Verdict.BETTER


def test_rows_that_are_all_equal_have_no_number_of_rows_that_would_show_a_difference():
    assert rows_needed(np.zeros(160)) is None


def test_many_different_scores_are_compared_at_once():
    random = np.random.default_rng(0)
    few, many = random.random((2, 400)), random.random((2, 50_000))
    began = time.process_time()
    found = compare(*many)
    assert time.process_time() - began < 2  # alone it takes 0.1 s; with each value by itself 10 s
    assert found.rows_needed == pytest.approx(compare(*few).rows_needed, rel=0.1)


def test_scores_without_bounds_need_the_rows_of_a_paired_z_test():
    differences = np.array([3.0, -3.0] * 50)
    assert rows_needed(differences, shares=False) == math.ceil(7.848879734 * 900 / 99 / 0.02**2)


SHOWN = {
    "right or wrong": lambda random, rows: random.choice([1.0, -1.0, 0.0], rows, p=[0.04, 0.02, 0.94]),
    "small differences": lambda random, rows: random.normal(0.02, 0.03, rows),
    "large differences": lambda random, rows: np.clip(random.normal(0.02, 0.2, rows), -1, 1),
    "F1": lambda random, rows: random.choice([1.0, -1.0, 0.0, 0.5, -0.5], rows, p=[0.06, 0.04, 0.7, 0.1, 0.1]),
}


@table("kind", SHOWN)
@pytest.mark.slow
def test_with_that_many_rows_2_points_are_shown_in_about_80_percent_of_samples(kind):
    random = np.random.default_rng(3)
    rows = rows_needed(SHOWN[kind](random, 2000))
    samples = (np.unique(SHOWN[kind](random, rows), return_counts=True) for _ in range(100))
    shown = [is_above_zero(values, counts, -1.0) for values, counts in samples]
    assert 66 <= sum(shown) <= 94


def test_of_many_different_scores_of_equally_good_models_at_most_5_percent_are_called_better():
    """Small gains and a rare great loss, whose mean is 0: a normal interval called a third of these pairs better."""
    random, rows, pairs = np.random.default_rng(77), 1200, 20
    before = np.full(rows, 0.95)
    better = 0
    for _ in range(pairs):
        after = np.where(random.random(rows) < 0.001, 0.0, before + random.uniform(0, 0.0019, rows))
        better += compare(before, after).verdict is Verdict.BETTER
    assert better <= 0.05 * pairs


def test_equal_scores_are_a_tie_without_a_number_of_rows():
    found = compare([0.5] * 30, [0.5] * 30)
    assert (found.difference, found.verdict, found.rows_needed) == (0.0, Verdict.NONE, None)
    assert found.low == pytest.approx(-(1 - 0.025 ** (1 / 30)), rel=0.05)  # as of 0 of 30 events


def test_a_comparison_is_the_same_at_each_call_and_after_json():
    random = np.random.default_rng(2)
    scores = random.random(100), random.random(100)
    found = compare(*scores)
    assert Paired.read(found.document()) == compare(*scores)
    assert Paired.read(found.document() | {"p_value": 0.5}) == found  # of an earlier version


def test_different_numbers_of_rows_are_refused():
    with pytest.raises(ValueError, match="same rows"):
        compare([1.0], [1.0, 0.0])


def changed(rows, right, wrong):
    return compare([0.0] * (rows - wrong) + [1.0] * wrong, [1.0] * right + [0.0] * (rows - right))


def test_a_tie_names_the_rows_that_would_show_2_points():
    assert in_words(changed(160, 5, 5)) == (
        "no difference shown at 160 rows (95% interval -4.8 to +4.8 points); about 1,300 would show 2 points"
    )


def test_a_gain_and_a_loss_name_their_size_and_interval():
    assert in_words(changed(500, 40, 15)).startswith("better by 5.0 points (95% interval +1.9 to +8.1, 500 rows)")
    assert in_words(changed(500, 15, 40)).startswith("worse by 5.0 points (95% interval -8.")


def test_equal_scores_and_enough_rows_have_no_number_of_rows():
    equal = "no difference shown at 160 rows: the scores of all rows are equal (95% interval -2.3 to +2.3 points)"
    assert in_words(compare([1.0] * 160, [1.0] * 160)) == equal
    assert in_words(changed(5000, 30, 30)).endswith("points)")

"""Tests of a paired comparison in words."""

from training.scoring.paired import compare
from training.scoring.words import in_words


def changed(rows, right, wrong):
    return compare([0.0] * (rows - wrong) + [1.0] * wrong, [1.0] * right + [0.0] * (rows - right))


def test_a_tie_names_the_rows_that_would_show_2_points():
    assert in_words(changed(160, 5, 5)) == (
        "no difference shown at 160 rows (95% interval -4.8 to +4.8 points); about 1,200 would show 2 points"
    )


def test_a_gain_and_a_loss_name_their_size_and_interval():
    assert in_words(changed(500, 40, 15)).startswith("better by 5.0 points (95% interval +1.9 to +8.1, 500 rows)")
    assert in_words(changed(500, 15, 40)).startswith("worse by 5.0 points (95% interval -8.")


def test_equal_scores_and_enough_rows_have_no_number_of_rows():
    equal = "no difference shown at 160 rows: the scores of all rows are equal (95% interval -2.3 to +2.3 points)"
    assert in_words(compare([1.0] * 160, [1.0] * 160)) == equal
    assert in_words(changed(5000, 30, 30)).endswith("points)")

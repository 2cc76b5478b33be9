"""The selection of training and held-out rows."""

import numpy as np
import pytest

from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.errors import DataError
from training.tokens.selection import select, sliced_rows

LENGTHS = np.full(40, 20)
FIRST = np.full(40, 5)


def chosen(**settings):
    return select(LENGTHS, FIRST, **{"max_length": 64, "seed": 1} | settings)


def test_the_split_is_the_same_for_a_seed_and_never_overlaps():
    first, again, other = chosen(eval_split=0.25), chosen(eval_split=10), chosen(eval_split=10, seed=2)
    assert (len(first.train), len(first.held_out)) == (30, 10)
    assert first.train.tolist() == again.train.tolist() != other.train.tolist()
    assert sorted([*first.train, *first.held_out]) == list(range(40))


def test_a_split_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(DataError, match="Lower eval_split"):
        chosen(eval_split=40)


def test_rows_without_loss_tokens_at_the_maximum_length_are_skipped_and_counted():
    lengths, first = np.array([9, 12, 37, 47, 0]), np.array([2, 5, 30, -1, -1])
    selection = select(lengths, first, max_length=10, seed=1)
    assert (selection.train.tolist(), selection.truncated) == ([0, 1], 3)
    assert (selection.untrained, selection.without_loss) == (1, 1)
    assert select(lengths, first, max_length=31, seed=1).train.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"max_length 2.*Raise max_length"):
        select(lengths, first, max_length=2, seed=1)
    with pytest.raises(DataError, match=r"has no row that carries loss.*weight_field"):
        select(lengths[3:], first[3:], max_length=100, seed=1)


@pytest.mark.parametrize(
    ("text", "selected", "rows"),
    [
        ("1%", "1%", 4),
        ("12.5 %", "12.5%", 50),
        (0.1, "0.1", 40),
        (500, "500", 400),
        ("7", "7", 7),
        ("0.01%", "0.01%", 1),
    ],
)
def test_a_slice_is_a_percentage_a_share_or_a_number_of_the_first_rows(text, selected, rows):
    config = RunConfig.model_validate({"model": "m", "data": "d", "data_slice": text})
    assert config.data_slice == selected
    assert sliced_rows(config.data_slice, 400) == rows


@pytest.mark.parametrize("text", ["0", "101%", "-3", "ten", "1.5", "inf", "nan", True])
def test_an_invalid_slice_is_refused_with_the_fix(text):
    with pytest.raises(ConfigError, match=r"data_slice .*percentage up to 100%, a share below 1 or a number of rows"):
        parse({"model": "m", "data": "d", "data_slice": text})


def test_the_sample_is_drawn_from_the_slice_by_the_seed():
    selection = chosen(data_slice="50%", max_samples=8, eval_split=2)
    rows = {*selection.train.tolist(), *selection.held_out.tolist()}
    assert len(rows) == 8 and max(rows) < 20
    again = chosen(data_slice="50%", max_samples=8, seed=2)
    assert set(again.train.tolist()) != rows


def test_stratified_rows_are_held_out_in_the_same_share_of_every_value():
    values = ["rare"] * 8 + ["common"] * 32
    held_out = chosen(eval_split=0.25, strata=values).held_out
    assert [values[row] for row in held_out].count("rare") == 2
    assert len(held_out) == 10


def test_uneven_shares_hold_out_the_requested_number_of_rows():
    held_out = chosen(eval_split=7, strata=[str(row % 3) for row in range(40)]).held_out
    counts = [sum(int(row) % 3 == value for row in held_out) for value in range(3)]
    assert sum(counts) == 7 and set(counts) <= {2, 3}


def test_rows_of_one_group_stay_on_one_side_of_the_split():
    groups = np.arange(40) // 4
    for seed in range(20):
        selection = chosen(eval_split=12, seed=seed, groups=groups)
        assert len(selection.held_out) == 12
        assert not {*groups[selection.train]} & {*groups[selection.held_out]}


def test_groups_of_one_row_split_as_no_groups_do():
    values = [str(row % 3) for row in range(40)]
    for strata in (None, values):
        single = chosen(eval_split=7, strata=strata, groups=np.arange(40))
        assert single.held_out.tolist() == chosen(eval_split=7, strata=strata).held_out.tolist()


def test_a_group_in_several_strata_or_larger_than_the_share_is_not_divided():
    values, groups = [str(row % 2) for row in range(40)], np.arange(40) // 8
    for strata in (None, values):
        selection = chosen(eval_split=3, strata=strata, groups=groups)
        assert len(selection.held_out) == 8 and len({*groups[selection.held_out]}) == 1


def test_only_the_rows_that_the_run_takes_count_for_the_size_of_a_group():
    selection = chosen(data_slice="12", eval_split=4, groups=np.arange(40) % 3)
    assert len(selection.held_out) == 4 and len({*(selection.held_out % 3)}) == 1


def test_a_large_group_is_held_out_as_often_as_a_small_one():
    groups = np.maximum(np.arange(40) - 9, 0)  # one of ten rows, 30 of one
    held_out = sum(0 in chosen(eval_split=20, seed=seed, groups=groups).held_out for seed in range(300))
    assert 90 < held_out < 160  # a group of ten within 20 of 40 rows: about 42%


def test_rows_of_a_single_group_cannot_be_split():
    with pytest.raises(DataError, match=r"40 rows of one group.*Clear group_by"):
        chosen(eval_split=4, groups=np.zeros(40, int))

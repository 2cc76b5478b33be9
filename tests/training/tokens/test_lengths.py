"""Statistics of token lengths, at any maximum length."""

import bisect

import numpy as np
import pytest

from training.tokens import lengths as numbers

LENGTHS = np.array([10, 20, 30, 400, 0, 50])
FIRST = np.array([5, 15, -1, 390, -1, 1])


def test_the_summary_skips_rows_without_loss_tokens():
    assert numbers.summary(LENGTHS) == {"median": 30, "p95": 50, "max": 400, "total": 510}
    assert numbers.summary(np.array([0])) == {"median": 0, "p95": 0, "max": 0, "total": 0}


def test_a_maximum_length_gives_truncated_rows_and_rows_without_loss_tokens():
    assert (numbers.truncated(LENGTHS, 25), numbers.lost_tokens(LENGTHS, 25)) == (3, 405)
    assert numbers.untrained_by_limit(FIRST, LENGTHS, [4, 16, 390, 391]) == {4: 4, 16: 2, 390: 2, 391: 1}


def test_the_longest_rows_come_with_their_lengths():
    assert numbers.longest_rows(LENGTHS, 3) == [(3, 400), (5, 50), (2, 30)]
    assert numbers.longest_rows(np.array([3, 0]), 10) == [(0, 3)]


def test_the_histogram_counts_every_row_with_tokens():
    bins = numbers.histogram(LENGTHS, bins=4)
    assert bins == {"edges": [0, 100, 200, 300, 400], "counts": [4, 0, 0, 1]}


def test_the_curve_gives_the_loss_for_every_maximum_length():
    points = {point["limit"]: point for point in numbers.cut_offs(LENGTHS, FIRST, bins=4)}
    assert points[400] == {"limit": 400, "rows_cut": 0, "tokens_lost": 0, "rows_untrained": pytest.approx(1 / 5)}
    assert points[100]["rows_cut"] == pytest.approx(1 / 5)
    assert points[100]["tokens_lost"] == pytest.approx(300 / 510)
    assert points[100]["rows_untrained"] == pytest.approx(2 / 5)


@pytest.mark.slow
def test_padding_is_what_the_collator_adds_in_the_order_of_the_seed():
    from training.batches.collators import Collator
    from training.tokens.order import epoch_order

    lengths = np.random.default_rng(0).integers(1, 200, 101)
    order, collate, sizes = epoch_order(101, 3, 0), Collator(0), [0, 0]
    for start in range(0, 101, 4):
        rows = [np.zeros(min(length, 128), np.int32) for length in lengths[order[start : start + 4]]]
        mask = collate([{"input_ids": row, "labels": row} for row in rows])["attention_mask"]
        sizes[0] += int(mask.sum())
        sizes[1] += mask.numel()
    assert numbers.padding_waste(lengths, 4, seed=3, limit=128) == pytest.approx(1 - sizes[0] / sizes[1])


@pytest.mark.parametrize("seed", range(20))
def test_packing_is_best_fit_with_the_longest_first(seed):
    lengths = np.random.default_rng(seed).integers(1, 90, 200)
    rooms: list[int] = []
    for length in sorted(np.minimum(lengths, 64).tolist(), reverse=True):
        place = bisect.bisect_left(rooms, length)
        room = rooms.pop(place) if place < len(rooms) else 64
        bisect.insort(rooms, room - length)
    waste = 1 - np.minimum(lengths, 64).sum() / (64 * len(rooms))
    assert numbers.packing_waste(lengths, 64) == pytest.approx(waste)


def test_rows_of_equal_length_have_no_padding():
    assert numbers.padding_waste(np.full(12, 64), 4, seed=1, limit=64) == 0
    assert numbers.packing_waste(np.full(12, 64), 64) == 0
    assert numbers.padding_waste(np.array([], int), 4, seed=1, limit=64) == 0

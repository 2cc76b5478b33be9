"""The order of rows, and the step of each batch, before a run."""

import numpy as np
import pytest

from training.batches.sets import RankBatches
from training.tokens.order import Shuffled, batches_of_ranks, epoch_order, place_of, steps_per_epoch, worst_batches

FIELD_REPORT = {"micro_batch": 4, "accumulation": 1, "seed": 0, "epochs": 1.0}


def test_every_epoch_has_every_row_once_in_another_order():
    first, again, second, other = (epoch_order(1000, *place).tolist() for place in ((7, 0), (7, 0), (7, 1), (8, 0)))
    assert sorted(first) == list(range(1000))
    assert first == again
    assert len({tuple(order) for order in (first, second, other)}) == 3


def test_with_twice_the_ranks_a_batch_comes_at_half_the_step():
    # The field report: 371,068 rows, 4 a batch; step 5,952 of 23,192 on four GPUs, 2,976 of 11,596 on eight.
    position = 4 * (4 * 5951 + 1)
    assert place_of(position, 4, 1, world=4)[0] == 5952
    assert place_of(position, 4, 1, world=8)[0] == 2976
    assert [steps_per_epoch(371_068, 4, 1, world) for world in (4, 8)] == [23_192, 11_596]


@pytest.mark.parametrize("seed", range(5))
def test_with_twice_the_ranks_a_long_row_comes_at_half_the_step(seed):
    lengths = np.full(371_068, 100)
    lengths[123_456] = 5000
    settings = FIELD_REPORT | {"seed": seed}
    four, eight = (worst_batches(lengths, world=world, **settings)[0] for world in (4, 8))
    assert 123_456 in four.rows and four.rows == eight.rows
    assert eight.step == -(-four.step // 2)
    assert (four.longest, four.tokens) == (5000, 4 * 5000)


@pytest.mark.parametrize(
    ("rows", "micro", "accumulation", "world", "epochs"),
    [(50, 3, 1, 1, 2), (50, 3, 2, 2, 3), (7, 2, 3, 4, 1), (64, 4, 2, 2, 1.5)],
)
def test_the_reported_batches_are_those_of_the_ranks(rows, micro, accumulation, world, epochs):
    """Compares with all batches of every rank's loader."""
    lengths = np.random.default_rng(0).integers(1, 10_000, rows)
    batches = worst_batches(
        lengths, micro_batch=micro, accumulation=accumulation, world=world, seed=5, epochs=epochs, count=10_000
    )
    per_epoch = steps_per_epoch(rows, micro, accumulation, world)
    walked = set()
    for epoch in range(int(np.ceil(epochs))):
        for rank in range(world):
            mine = RankBatches(Shuffled(rows, 5), micro, rank, world)
            mine.epoch = epoch
            turns = list(mine)
            for turn, batch in enumerate(turns[: len(turns) - mine.empty_at_end]):
                step = epoch * per_epoch + turn // accumulation + 1
                if step <= np.ceil(epochs * per_epoch):
                    walked.add((epoch, step, rank, turn % accumulation + 1, tuple(batch)))
    assert {(batch.epoch, batch.step, batch.rank, batch.micro, tuple(batch.rows)) for batch in batches} == walked
    assert [batch.longest for batch in batches] == sorted((batch.longest for batch in batches), reverse=True)


def test_of_equally_long_batches_the_earliest_come_first():
    batches = worst_batches(np.full(100, 64), micro_batch=2, accumulation=1, world=2, seed=1, epochs=3, count=5)
    assert [(batch.step, batch.rank) for batch in batches] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]


def test_batches_after_the_last_step_are_not_reported():
    batches = worst_batches(np.arange(1, 101), micro_batch=2, accumulation=1, world=1, seed=1, epochs=9, max_steps=7)
    assert max(batch.step for batch in batches) == 7


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 10, 16])
def test_no_row_repeats_in_an_epoch_and_every_rank_has_every_micro_step(rows, world):
    ranks = [RankBatches(Shuffled(rows, 1), 4, rank, world) for rank in range(world)]
    assert len({len(list(rank)) for rank in ranks}) == 1
    mine = [list(rank)[: len(rank) - rank.empty_at_end] for rank in ranks]
    taken = [row for batches in mine for batch in batches for row in batch]
    assert sorted(taken) == list(range(rows))


def test_a_rank_without_rows_at_the_end_of_an_epoch_gets_a_marked_batch():
    shares = {"micro_batch": 4, "accumulation": 1, "world": 2}
    assert batches_of_ranks(Shuffled(10, 1), step=2, micro=1, **shares) == [epoch_order(10, 1, 0)[8:].tolist(), []]
    assert RankBatches(Shuffled(10, 1), 4, 1, 2).empty_at_end == 1


@pytest.mark.parametrize(("rows", "world"), [(50, 1), (50, 2), (7, 3), (64, 2)])
def test_the_micro_batches_of_a_step_come_as_often_as_it_is_trained_on(rows, world):
    micro, accumulation, iterations, order = 3, 2, 3, Shuffled(rows, 1)
    shares = {"micro_batch": micro, "accumulation": accumulation, "world": world, "iterations": iterations}
    steps = steps_per_epoch(rows, micro, accumulation, world, iterations)
    for rank in range(world):
        mine = RankBatches(order, micro, rank, world, accumulation=accumulation, iterations=iterations)
        batches = list(mine)
        assert len(batches) == len(mine) == steps * accumulation
        for turn, batch in enumerate(batches):
            step, micro_step = turn // accumulation + 1, turn % accumulation + 1
            expected = batches_of_ranks(order, step=step, micro=micro_step, **shares)[rank]
            assert batch == (expected or [order.epoch(0)[0]])
            is_last = step > steps - iterations and micro_step > accumulation - mine.empty_at_end
            assert is_last == (not expected)


def test_a_batch_that_is_trained_on_again_is_in_the_second_step():
    lengths = np.where(np.arange(12) == epoch_order(12, 1, 0)[0], 90, 10)
    split = {"micro_batch": 4, "accumulation": 1, "world": 1, "seed": 1, "epochs": 1, "count": 1, "iterations": 2}
    (largest,) = worst_batches(lengths, **split)
    (later,) = worst_batches(lengths, **split, first=(False, True))
    assert (largest.step, later.step, later.longest) == (1, 2, 90)

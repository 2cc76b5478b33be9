"""The order of rows is known before a run, and with it the step at which each batch comes."""

import numpy as np
import pytest

from training.order import epoch_order, filled_order, place_of, steps_per_epoch, worst_batches

FIELD_REPORT = {"micro_batch": 4, "accumulation": 1, "seed": 0, "epochs": 1.0}


def test_every_epoch_has_every_row_once_in_an_order_of_its_own():
    first, again, second, other = (epoch_order(1000, *place).tolist() for place in ((7, 0), (7, 0), (7, 1), (8, 0)))
    assert sorted(first) == list(range(1000))
    assert first == again
    assert len({tuple(order) for order in (first, second, other)}) == 3


def test_twice_the_ranks_come_to_the_same_batch_at_half_the_step():
    # The field report: 371,068 rows, 4 a batch; step 5,952 of 23,192 on four GPUs, 2,976 of 11,596 on eight.
    position = 4 * (4 * 5951 + 1)
    assert place_of(position, 4, 1, world=4)[0] == 5952
    assert place_of(position, 4, 1, world=8)[0] == 2976
    assert [steps_per_epoch(371_068, 4, 1, world) for world in (4, 8)] == [23_192, 11_596]


@pytest.mark.parametrize("seed", range(5))
def test_a_single_long_row_is_found_at_half_the_step_with_twice_the_ranks(seed):
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
def test_batches_are_where_accelerate_puts_them(rows, micro, accumulation, world, epochs):
    """Every batch of the run, found by walking through accelerate's own sampler on every rank."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    lengths = np.random.default_rng(0).integers(1, 10_000, rows)
    found = worst_batches(
        lengths, micro_batch=micro, accumulation=accumulation, world=world, seed=5, epochs=epochs, count=10_000
    )
    per_epoch = steps_per_epoch(rows, micro, accumulation, world)
    walked = set()
    for epoch in range(int(np.ceil(epochs))):
        for rank in range(world):
            whole = BatchSampler(epoch_order(rows, 5, epoch).tolist(), micro, drop_last=False)
            mine = list(BatchSamplerShard(whole, world, rank) if world > 1 else whole)
            for turn, batch in enumerate(mine):
                step = epoch * per_epoch + turn // accumulation + 1
                if step <= np.ceil(epochs * per_epoch):
                    walked.add((epoch, step, rank, turn % accumulation + 1, tuple(batch)))
    assert {(batch.epoch, batch.step, batch.rank, batch.micro, tuple(batch.rows)) for batch in found} == walked
    assert [batch.longest for batch in found] == sorted((batch.longest for batch in found), reverse=True)


def test_of_equally_long_batches_the_earliest_come_first():
    found = worst_batches(np.full(100, 64), micro_batch=2, accumulation=1, world=2, seed=1, epochs=3, count=5)
    assert [(batch.step, batch.rank) for batch in found] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]


def test_what_comes_after_the_last_step_is_not_named():
    found = worst_batches(np.arange(1, 101), micro_batch=2, accumulation=1, world=1, seed=1, epochs=9, max_steps=7)
    assert max(batch.step for batch in found) == 7


def test_one_rank_ends_an_epoch_with_a_short_batch_and_several_fill_it_up():
    assert len(filled_order(10, 1, 0, micro_batch=4, world=1)) == 10
    order = filled_order(10, 1, 0, micro_batch=4, world=2).tolist()
    assert len(order) == 16 and order[10:] == order[:6]

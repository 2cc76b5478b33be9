"""The order of a mixture: shares, passes, epochs."""

import numpy as np
import pytest

from training.config.choices import MixUntil
from training.config.fields import parse
from training.errors import DataError
from training.tokens.order import Shuffled, covering, steps_per_epoch, worst_batches
from training.tokens.packing import Mixed, mixture, order_of


def mixed(counts, weights, *, tokens=None, together=8, until=MixUntil.FIRST_EXHAUSTED, seed=7) -> Mixed:
    lengths = np.ones(sum(counts)) if tokens is None else np.asarray(tokens)
    return mixture(
        lambda mine, own: Shuffled(len(mine), own),
        lengths,
        np.cumsum(counts).tolist(),
        weights,
        by_tokens=tokens is not None,
        seed=seed,
        together=together,
        until=until,
    )


def sequence(order, epochs=5):
    return np.concatenate([order.epoch(number) for number in range(epochs)])


def set_of(rows, counts):
    return np.searchsorted(np.cumsum(counts), rows, side="right")


def test_shares_of_rows_are_those_of_the_weights_after_any_step():
    counts, weights = (5000, 800, 90), np.array([0.6, 0.3, 0.1])
    sets = set_of(sequence(mixed(counts, weights.tolist(), together=8)), counts)
    taken = np.stack([np.cumsum(sets == number) for number in range(3)])[:, 7::8]
    rows = np.arange(1, taken.shape[1] + 1) * 8
    assert np.abs(taken - weights[:, None] * rows).max() < 2  # rows
    late = rows >= 400
    assert np.abs(taken / rows - weights[:, None])[:, late].max() < 0.005


def test_shares_of_tokens_are_those_of_the_weights():
    generator = np.random.default_rng(3)
    counts = (900, 300, 500)
    tokens = np.concatenate(
        [generator.integers(1, most, count) for most, count in zip((40, 900, 200), counts, strict=True)]
    )
    weights = np.array([0.2, 0.5, 0.3])
    rows = sequence(mixed(counts, weights.tolist(), tokens=tokens))
    sets = set_of(rows, counts)
    taken = np.stack([np.cumsum(tokens[rows] * (sets == number)) for number in range(3)])
    shares = taken / taken.sum(0)
    enough = taken.sum(0) > 200_000
    assert enough.any() and np.abs(shares - weights[:, None])[:, enough].max() < 0.005


@pytest.mark.parametrize("until", list(MixUntil))
def test_a_set_repeats_no_row_before_all_were_used(until):
    counts = (50, 7)
    rows = sequence(mixed(counts, [1, 1], until=until, together=1), 9)
    small = rows[rows >= 50]
    for first in range(0, len(small) - 6, 7):
        assert sorted(small[first : first + 7]) == list(range(50, 57))


def test_an_epoch_ends_with_the_first_or_the_last_set():
    counts = (100, 10)
    short, long = (mixed(counts, [1, 1], until=until) for until in MixUntil)
    assert (len(short), len(long)) == (20, 200)
    assert set(range(100, 110)) <= set(short.epoch(0))
    assert set(range(100)) <= set(long.epoch(0))


def test_the_next_epoch_has_other_rows_of_the_larger_set():
    order = mixed((100, 10), [1, 1])
    rows = [set(order.epoch(number)[order.epoch(number) < 100]) for number in range(10)]
    assert set().union(*rows) == set(range(100)) and sum(map(len, rows)) == 100
    assert covering(order) >= 10


def test_epochs_can_be_read_in_any_order():
    first, second = mixed((60, 9, 30), [2, 1, 1]), mixed((60, 9, 30), [2, 1, 1])
    forward = [first.epoch(number).tolist() for number in range(6)]
    assert [second.epoch(number).tolist() for number in reversed(range(6))][::-1] == forward
    assert mixed((60, 9, 30), [2, 1, 1], seed=8).epoch(0).tolist() != forward[0]


def test_equally_large_sets_are_not_paired():
    order = mixed((200, 200), [1, 1], together=2)
    rows = order.epoch(0).reshape(-1, 2)
    assert (np.abs(rows[:, 0] - rows[:, 1]) == 200).mean() < 0.1


def test_the_longest_batch_is_found_in_a_later_epoch():
    lengths = np.array([10] * 110)
    order = mixed((100, 10), [1, 1], together=2)
    late = next(row for row in order.epoch(7) if row < 100)
    lengths[late] = 500
    (worst,) = worst_batches(lengths, micro_batch=2, accumulation=1, world=1, seed=7, epochs=10, count=1, order=order)
    assert (worst.epoch, worst.longest) == (7, 500) and late in worst.rows
    assert worst.step > 7 * steps_per_epoch(len(order), 2, 1, 1)


def test_packs_have_rows_of_one_set_each():
    generator = np.random.default_rng(1)
    lengths, ends = generator.integers(5, 60, 300), (200, 300)
    config = parse({"model": "m", "data": ["a, weight=1", "b, weight=1"], "packing": "packed", "max_length": 64})
    packs = order_of(config, lengths, ends).epoch(0)
    assert all(len(set(set_of(pack, (200, 100)))) == 1 and lengths[pack].sum() <= 64 for pack in packs)
    rows = np.concatenate(packs)
    assert np.mean(rows < 200) == pytest.approx(0.5, abs=0.02)


def test_without_weights_sets_are_one():
    config = parse({"model": "m", "data": ["a", "b"]})
    assert order_of(config, np.ones(30), (20, 30)) is None


def test_batches_by_length_keep_the_rows_of_the_epoch():
    generator = np.random.default_rng(2)
    lengths, ends = generator.integers(5, 60, 300), (200, 300)
    settings = {"model": "m", "data": ["a, weight=1", "b, weight=1"]}
    plain, sorted_ = (
        order_of(parse(settings | {"batch_order": name}), lengths, ends) for name in ("shuffled", "by_length")
    )
    assert len(plain) == len(sorted_)
    assert sorted(plain.epoch(1)) == sorted(sorted_.epoch(1))


def test_an_epoch_without_end_is_refused():
    with pytest.raises(DataError, match="rows in an epoch") as caught:
        mixed((1000, 1000), [1e9, 1], until=MixUntil.ALL_EXHAUSTED)
    assert "mix_until" in caught.value.fix
    assert len(mixed((1000, 1000), [1e9, 1])) == 1000

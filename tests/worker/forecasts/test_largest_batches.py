"""The largest batches of a run from its token counts, by their place in its steps."""

import numpy as np
import pytest

from training.config.run_config import RunConfig
from training.tokens.order import worst_batches
from training.tokens.run_rows import RowLengths, halved
from worker.forecasts.speed import steps_of
from worker.forecasts.worst_batch import worst_batches_of

LIMIT = 64


def config(**settings: object) -> RunConfig:
    given = {"model": "m", "data": "d", "max_length": LIMIT, "micro_batch_size": 1, "eval_split": 0, "packing": "none"}
    return RunConfig.model_validate(given | settings)


def rows(*lengths: int) -> RowLengths:
    return RowLengths(np.array(lengths), np.ones(len(lengths), int))


def test_pretraining_splits_long_texts_and_truncates_none() -> None:
    asked = config(task="pretraining", epochs=1, micro_batch_size=4, gradient_accumulation_steps=1)
    # Pieces of 64, 36 and 64 tokens; one of 1 token is left out.
    (worst,) = worst_batches_of(asked, rows(100, 65), flat=False)
    assert sorted(worst.lengths) == [36, 64, 64]
    assert steps_of(asked, rows(*[100] * 4)) == 2


def test_held_out_rows_of_an_encoder_decoder_are_in_no_batch() -> None:
    rows = RowLengths(np.array([90, 40, 40, 40]), np.array([60, 20, 20, 20]), near=np.arange(4))
    lengths = halved(rows)
    found = {
        seed: {
            row
            for worst in worst_batches_of(config(task="seq2seq", eval_split=3, seed=seed), lengths, flat=False)
            for row in worst.rows
        }
        for seed in range(8)
    }
    assert all(len(rows) == 1 for rows in found.values()) and len(set(map(tuple, found.values()))) > 1


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_batch_of_each_place_is_found(seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 1000, 50)
    run = {"micro_batch": 2, "accumulation": 3, "world": 2, "seed": seed, "epochs": 2.0, "pads": False}
    everywhere = worst_batches(sizes, count=100, **run)  # type: ignore[arg-type]
    for first in ((True, True), (True, False), (False, True), (False, False)):
        (found,) = worst_batches(sizes, count=1, first=first, **run)  # type: ignore[arg-type]
        there = [one for one in everywhere if (one.step == 1, one.micro == 1) == first]
        assert found.tokens == max(one.tokens for one in there)


def test_a_largest_batch_in_the_first_step_comes_with_those_of_later_steps() -> None:
    asked = config(gradient_accumulation_steps=1)
    lengths = np.full(20, 10)
    for row in range(20):
        lengths[:] = 10
        lengths[row] = LIMIT
        found = worst_batches_of(asked, rows(*lengths), flat=False)
        early = [one for one in found if one.batch.first_step]
        assert len(found) == (2 if early else 1)
        assert max(one.longest for one in found) == LIMIT


def test_samples_have_their_greatest_length_and_prompts_at_most_the_maximum_length() -> None:
    settings = {"model": "m", "data": "d", "task": "grpo", "num_generations": 4, "micro_batch_size": 4, "eval_split": 0}
    run = RunConfig.model_validate(settings | {"max_length": 100, "max_completion_length": 50})
    counts = RowLengths(np.array([30, 80, 400]), np.array([0, 0, 0]))
    worst = worst_batches_of(run, counts, flat=False)[0]
    assert worst.lengths == [150] * 4 and worst.answers == [50] * 4 and worst.rows == [3] * 4

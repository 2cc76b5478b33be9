"""The most that fits: the border that a search finds, and the changes that apply it."""

import random

import pytest

from training.config.choices import Wanted
from training.config.run_config import RunConfig
from training.forecast.forecast import Forecast, estimate
from training.forecast.gpus import CARDS, Card
from training.forecast.solve import LENGTH_STEP, border, by_memory, largest, solve
from training.model_info.families import shape_of

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
SHAPE = shape_of(LLAMA)


def config(**settings: object) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d", "method": "lora", "micro_batch_size": 1} | settings)


def expected(asked: RunConfig, card: Card | None) -> Forecast:
    return estimate(asked, SHAPE, card=card)


@pytest.mark.parametrize(("limit", "step", "most"), [(0, 1, 9), (5, 1, 9), (9, 1, 9), (640, 64, 4096), (1, 64, 64)])
def test_the_search_finds_the_last_value_that_fits(limit: int, step: int, most: int) -> None:
    assert largest(lambda value: value <= limit, step, most) == min(limit, most) // step * step


def test_the_search_with_few_peaks_finds_the_border_from_any_guess() -> None:
    dice = random.Random(1)
    for _ in range(200):
        weights, row, square = dice.randint(0, 10_000), dice.randint(1, 50), dice.choice((0.0, 0.001))
        limit = dice.randint(0, 60_000)

        def peak(value: int, of: tuple[int, int, float] = (weights, row, square)) -> int:
            return int(of[0] + of[1] * value + of[2] * value**2)

        guess = dice.choice((64, 512, 4096))
        found = border(peak, guess, 64, 4096, limit)
        assert found == max((value for value in range(64, 4097, 64) if peak(value) <= limit), default=0)


@pytest.mark.parametrize("wanted", [Wanted.MAX_LENGTH, Wanted.MICRO_BATCH_SIZE, Wanted.LORA_R])
def test_the_answer_fits_and_the_next_value_does_not(wanted: Wanted) -> None:
    asked, card = config(max_length=512, target_modules="all-linear"), CARDS["l4"]
    found = solve(wanted, asked, card, expected, longest=65536)
    assert isinstance(found.value, int) and found.forecast and found.forecast.fits and not found.bounded
    applied = RunConfig.model_validate(asked.model_dump(mode="json") | found.changes)
    assert expected(applied, card).fits
    step = {Wanted.MAX_LENGTH: LENGTH_STEP, Wanted.LORA_R: 8}.get(wanted, 1)
    more = RunConfig.model_validate(applied.model_dump(mode="json") | {wanted.value: found.value + step})
    assert not expected(more, card).fits


def test_a_larger_micro_batch_keeps_the_global_batch_where_it_divides() -> None:
    asked = config(micro_batch_size=1, gradient_accumulation_steps=64, max_length=512)
    found = solve(Wanted.MICRO_BATCH_SIZE, asked, CARDS["h100"], expected)
    assert found.changes["gradient_accumulation_steps"] == max(1, round(64 / int(found.value or 0)))


def test_the_fewest_gpus_shard_what_one_cannot_hold() -> None:
    asked = config(method="full", max_length=512, gradient_accumulation_steps=16)
    found = solve(Wanted.GPUS, asked, CARDS["a100-40gb"], expected)
    assert isinstance(found.value, int) and found.value > 1
    assert found.changes["num_processes"] == found.value
    assert found.changes["strategy"] in ("zero2", "zero3")
    applied = RunConfig.model_validate(asked.model_dump(mode="json") | found.changes)
    assert expected(applied, CARDS["a100-40gb"]).fits
    assert applied.global_batch_size == asked.global_batch_size or 16 % found.value
    alone = solve(Wanted.GPUS, config(max_length=512), CARDS["h100"], expected)
    assert alone.value == 1


def test_the_cheapest_gpu_is_the_first_that_fits() -> None:
    found = solve(Wanted.GPU, config(max_length=512), None, expected)
    order = by_memory()
    assert found.card and found.forecast and found.forecast.fits
    smaller = order[: order.index(found.card)]
    assert not any(expected(config(max_length=512), card).fits for card in smaller if card.bf16)
    assert solve(Wanted.GPU, config(), None, expected, cheapest_first=[CARDS["h200"], CARDS["l4"]]).value == "h200"


def test_what_cannot_be_answered_has_a_reason() -> None:
    assert "no rank" in solve(Wanted.LORA_R, config(method="full"), CARDS["h100"], expected).reason
    assert "no limit" in solve(Wanted.MAX_LENGTH, config(), None, expected).reason
    assert "Choose a GPU" in solve(Wanted.GPUS, config(), None, expected).reason
    huge = solve(Wanted.MAX_LENGTH, config(method="full"), CARDS["l4"], expected)
    assert huge.value is None
    assert "does not fit either" in huge.reason


def test_a_memory_limit_on_cpu_is_solved_for_too() -> None:
    found = solve(Wanted.MAX_LENGTH, config(memory_limit=60_000, precision="bf16"), None, expected, longest=65536)
    assert isinstance(found.value, int) and found.value >= LENGTH_STEP


def test_a_length_beyond_the_longest_row_makes_no_difference() -> None:
    found = solve(Wanted.MAX_LENGTH, config(), CARDS["b200"], expected, longest=700)
    assert (found.value, found.bounded) == (704, True)

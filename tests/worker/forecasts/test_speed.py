"""Time, energy and cost of a run: ranges, what they rest on, and their calibration with finished runs."""

from typing import Any

import numpy as np
import pytest
from played_run import SUMMARY, PlayedRun

from app.format.forecast_text import speed_page
from app.web.rest.settings import NewPreferences, change_settings
from training.config.run_config import RunConfig
from training.forecast.formula.activations import Batch
from training.forecast.gpus import CARDS
from training.forecast.roofline import EFFICIENCY, roofline
from training.model_info.families import shape_of
from training.tokens.run_rows import RowLengths
from worker.forecasts import prices, speed
from worker.forecasts.calibration import calibrate
from worker.forecasts.forecast import Setup
from worker.forecasts.prices import PriceError, Prices
from worker.store import database as db
from worker.store.tables import LOCAL, Run

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
SHAPE, H100 = shape_of(LLAMA), CARDS["h100"]
ROWS = RowLengths(np.full(1000, 200), np.full(1000, 50))


def config(**settings: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d", "method": "lora", "eval_split": 0} | settings)


def test_the_arithmetic_is_six_flop_per_weight_and_token_or_four_if_weights_are_frozen() -> None:
    batch = Batch(1, 64, 8192, 8192, flat=True)
    linear = SHAPE.linear_weights + SHAPE.head
    for method, times in (("full", 6), ("lora", 4)):
        flops = roofline(config(method=method, gradient_accumulation_steps=1), SHAPE, H100, batch).flops
        assert flops == pytest.approx(times * linear * 8192, rel=0.01)  # attention within short rows adds little


def test_a_faster_gpu_recomputation_and_more_gpus_change_the_time_as_they_should() -> None:
    def seconds(card: str = "h100", **settings: Any) -> float:
        return roofline(config(**settings), SHAPE, CARDS[card], Batch(4, 1024, 4096, 4096, flat=True)).seconds(0.5)

    assert seconds() < seconds("a100-80gb") < seconds("l4")
    assert seconds() < seconds(gradient_checkpointing="selective") < seconds(gradient_checkpointing="full")
    assert seconds() < seconds(strategy="ddp", num_processes=2) < seconds(strategy="zero3", num_processes=2)


def test_hours_follow_from_rows_epochs_and_the_global_batch(database: str) -> None:
    asked = config(micro_batch_size=4, gradient_accumulation_steps=5, epochs=2)
    found = speed.speed_of(Setup(asked, SHAPE, H100, ROWS), prices.parse("h100=3, l4=1", "0.25"))
    assert found.steps == 2 * 1000 // 20
    assert found.hours and found.seconds_per_step and found.kwh and found.cost
    assert found.hours == pytest.approx([found.steps * second / 3600 for second in found.seconds_per_step])
    assert found.cost == pytest.approx(
        [3 * hour + 0.25 * kwh for hour, kwh in zip(found.hours, found.kwh, strict=True)]
    )
    assert "Your own finished runs narrow it" in speed_page(found)


def test_without_a_basis_nothing_is_said_but_why(database: str) -> None:
    assert "only for GPUs" in speed.speed_of(Setup(config(), SHAPE, None, ROWS)).notes[0]
    unknown = speed.speed_of(Setup(config(max_steps=None), SHAPE, H100))
    assert unknown.hours is None and unknown.tokens_per_second
    assert "not tokenized" in unknown.notes[-1]
    assert "Enter prices" in speed.speed_of(Setup(config(max_steps=5), SHAPE, H100), Prices()).notes[-1]


def test_finished_runs_on_the_same_gpu_narrow_the_range(database: str) -> None:
    ideal = {"compute": 0.5, "moving": 0.0, "tokens": 10_000.0}
    for share in (0.38, 0.4, 0.42):
        played = PlayedRun().claim()
        played.end(summary=SUMMARY | {"tokens_per_second": 10_000 * share / 0.5})
        with db.write() as session:
            session.get_one(Run, played.id).forecast = {"card": "h100", "roofline": ideal, "allocated_bytes": 0}
    measured, other = calibrate(H100), calibrate(CARDS["l4"])
    assert measured.efficiency_runs == 3
    assert measured.efficiency == pytest.approx((0.39, 0.41))
    assert (other.efficiency, other.efficiency_runs) == (EFFICIENCY, 0)


@pytest.mark.parametrize(
    ("gpu_hour", "kwh", "expected"),
    [
        ("", "", Prices()),
        ("2.5", "0.3", Prices(2.5, {}, 0.3)),
        ("h100=2.5, L4 = 0.6, 1", "", Prices(1.0, {"h100": 2.5, "l4": 0.6})),
    ],
)
def test_prices_are_one_for_all_gpus_or_one_for_each(gpu_hour: str, kwh: str, expected: Prices) -> None:
    assert prices.parse(gpu_hour, kwh) == expected


@pytest.mark.parametrize(
    ("gpu_hour", "kwh"), [("cheap", ""), ("h101=2", ""), ("-1", ""), ("nan", ""), ("", "1e9"), ("=", "")]
)
def test_what_is_no_price_is_refused_with_the_field(gpu_hour: str, kwh: str) -> None:
    with pytest.raises(PriceError) as caught:
        prices.parse(gpu_hour, kwh)
    assert caught.value.problem.field == ("price_gpu_hour" if gpu_hour else "price_kwh")


def test_prices_are_stored_for_their_user_and_order_the_gpus(database: str) -> None:
    change_settings(NewPreferences(price_gpu_hour="h200=2.0, l4=2.5", price_kwh="0.30"))
    assert prices.of_user(LOCAL) == Prices(None, {"h200": 2.0, "l4": 2.5}, 0.3)
    assert prices.of_user("somebody else") == Prices()
    assert [card.name for card in prices.cheapest_first(prices.of_user(LOCAL))] == ["h200", "l4"]
    with pytest.raises(PriceError):
        change_settings(NewPreferences(price_gpu_hour="a lot"))
    assert prices.of_user(LOCAL).kwh == 0.3


def test_a_run_on_samples_counts_them_as_rows_and_says_why_its_time_is_not_known() -> None:
    sampled = config(task="grpo", num_generations=8, micro_batch_size=16, epochs=2)
    of_samples = speed.speed_of(Setup(sampled, SHAPE, H100, ROWS))
    assert of_samples.steps == 1000 * 8 * 2 // 16 and of_samples.hours is None
    assert "drawing samples" in of_samples.notes[0]

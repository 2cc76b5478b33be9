"""What was predicted of a run's memory stands beside what it measured, which makes the next forecasts on the card better."""

from pathlib import Path
from typing import Any

import pytest
from conftest import use
from played_run import SUMMARY, PlayedRun
from tiny import make_model

from app.cli_show import page
from app.pages import run_parts
from app.run_document import document
from training.cards import CARDS, GIB
from training.config import RunConfig
from training.memory import SLACK
from training.rules import Machine
from worker import calibration, forecasting, predicted
from worker import database as db
from worker.models import Run

CARD = CARDS["v100-32gb"]
V100 = Machine("cuda", 2, ["Tesla V100-SXM2-32GB"] * 2, [CARD.memory_bytes] * 2, bf16=False)
FORECAST = {"card": CARD.name, "allocated_bytes": 10 * GIB, "moving_bytes": 4 * GIB, "peak_bytes": 11 * GIB}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "model")


def finished(reserved: list[int], forecast: dict[str, Any] | None = None) -> PlayedRun:
    """A run that finished with so much reserved on each rank."""
    played = PlayedRun().claim()
    memory = {"peak_bytes": [9 * GIB, 10 * GIB], "reserved_bytes": reserved}
    played.end(summary=SUMMARY | {"memory": memory})
    with db.write() as session:
        session.get_one(Run, played.id).forecast = forecast or FORECAST
    return played


def test_the_forecast_of_a_run_is_in_bytes_on_the_card_that_it_runs_on(database: str, model: Path) -> None:
    found = predicted.of_run(RunConfig(model=str(model), data="none", strategy="ddp", num_processes=2), V100)
    assert found is not None
    assert found["card"] == CARD.name
    assert found["peak_bytes"] == sum(found["parts"].values()) > found["allocated_bytes"] > found["moving_bytes"] > 0


def test_on_cpu_there_is_a_forecast_where_tensors_are_counted(database: str, model: Path) -> None:
    config = RunConfig(model=str(model), data="none")
    assert predicted.of_run(config, Machine()) is None
    assert predicted.of_run(config.model_copy(update={"memory_limit": 1000}), Machine()) is not None


def test_no_forecast_is_made_up_for_a_model_that_is_not_there(database: str) -> None:
    assert predicted.of_run(RunConfig(model="no/such-model", data="none"), V100) is None


def test_predicted_and_measured_stand_side_by_side(database: str) -> None:
    played = finished([11 * GIB, 12 * GIB])
    with db.read() as session:
        values = document(session, played.id)
    assert values["memory"][1] == {
        "rank": 1,
        "predicted_bytes": 10 * GIB,
        "measured_bytes": 10 * GIB,
        "reserved_bytes": 12 * GIB,
    }
    assert "Predicted peak" in page(values, 0)
    assert "predicted" in str(run_parts.results(played.row)) and "12.0 GiB" in str(run_parts.results(played.row))


def test_three_runs_on_a_card_calibrate_its_slack_by_their_median(database: str) -> None:
    for reserved in (11, 12, 14):
        assert calibration.known(CARD) is None
        finished([10 * GIB, reserved * GIB])
    found = calibration.known(CARD)
    assert found is not None
    assert (found.slack, found.runs) == (0.5, 3)  # 2 GiB of the 4 that come and go
    assert "from 3 runs on this card" in found.note
    assert calibration.known(CARDS["t4"]) is None


def test_only_the_newest_runs_with_a_forecast_and_a_measurement_count(database: str) -> None:
    for _ in range(calibration.LEAST):
        finished([20 * GIB])
    finished([], FORECAST)
    for _ in range(calibration.RUNS):
        finished([11 * GIB])
    found = calibration.known(CARD)
    assert found is not None and (found.slack, found.runs) == (0.25, calibration.RUNS)


def test_a_forecast_takes_the_calibrated_slack_and_says_so(model: Path) -> None:
    config, shape = RunConfig(model=str(model), data="none"), forecasting.shape_at(str(model))
    usual = forecasting.foresee(config, shape, CARD)
    measured = forecasting.foresee(config, shape, CARD, calibration=calibration.Calibration(2 * SLACK, 7))
    assert measured.forecast.parts["slack"] == pytest.approx(2 * usual.forecast.parts["slack"], abs=2)
    assert any("from 7 runs on this card" in note for note in measured.notes)


def test_looking_for_a_calibration_makes_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DATA_DIR=str(tmp_path))
    assert calibration.known(CARD) is None
    assert not list(tmp_path.iterdir())

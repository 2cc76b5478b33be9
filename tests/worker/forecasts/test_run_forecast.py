"""Predicted and measured memory of runs, and the calibration of later forecasts for the same GPU."""

from pathlib import Path
from typing import Any

import pytest
from environment import use
from played_run import SUMMARY, PlayedRun
from tiny import make_model

from app.cli.runs.show import page
from app.documents.run import document
from app.pages.run.overview import memory
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast.forecast import SLACK
from training.forecast.gpus import CARDS, GIB
from worker.forecasts import calibration, run_forecast, shapes
from worker.forecasts.forecast import Setup, estimate_run
from worker.runs.settle import settle
from worker.store import database as db
from worker.store.tables import Run

pytestmark = pytest.mark.slow  # a real model needs torch

CARD = CARDS["v100-32gb"]
V100 = Machine("cuda", 2, ["Tesla V100-SXM2-32GB"] * 2, [CARD.memory_bytes] * 2, bf16=False)
FORECAST = {"card": CARD.name, "allocated_bytes": 10 * GIB, "moving_bytes": 4 * GIB, "peak_bytes": 11 * GIB}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "model")


def finished(reserved: list[int], forecast: dict[str, Any] | None = None) -> PlayedRun:
    """A finished run with this much reserved memory on each rank."""
    played = PlayedRun().claim()
    memory = {"peak_bytes": [9 * GIB, 10 * GIB], "reserved_bytes": reserved}
    played.end(summary=SUMMARY | {"memory": memory})
    with db.write() as session:
        session.get_one(Run, played.id).forecast = forecast or FORECAST
    return played


def test_a_run_stores_the_forecast_in_bytes_for_its_gpu(database: str, model: Path) -> None:
    stored = run_forecast.recorded(
        settle(RunConfig(model=str(model), data="none", strategy="ddp", num_processes=2)), V100
    )
    assert stored is not None
    assert stored["card"] == CARD.name
    assert (
        stored["peak_bytes"] == sum(stored["parts"].values()) > stored["allocated_bytes"] > stored["moving_bytes"] > 0
    )


def test_on_cpu_a_forecast_needs_a_memory_limit(database: str, model: Path) -> None:
    config = RunConfig(model=str(model), data="none")
    assert run_forecast.recorded(settle(config), Machine()) is None
    assert run_forecast.recorded(settle(config.model_copy(update={"memory_limit": 1000})), Machine()) is not None


def test_a_missing_model_has_no_forecast(database: str) -> None:
    assert run_forecast.recorded(settle(RunConfig(model="no/such-model", data="none")), V100) is None


def test_a_run_has_predicted_and_measured_memory(database: str) -> None:
    played = finished([11 * GIB, 12 * GIB])
    with db.read() as session:
        values = document(session, played.id).model_dump(mode="json")
    assert values["memory"][1] == {
        "rank": 1,
        "predicted_bytes": 10 * GIB,
        "measured_bytes": 10 * GIB,
        "reserved_bytes": 12 * GIB,
    }
    assert "Forecast peak" in page(values, 0)
    assert [row[-2:] for row in memory(played.row)][::2] == [["reserved", "forecast"], ["12.0 GiB", "10.0 GiB"]]


def test_three_runs_on_a_gpu_calibrate_its_slack_by_their_median(database: str) -> None:
    for reserved in (11, 12, 14):
        assert not calibration.calibrate(CARD).slack_runs
        finished([10 * GIB, reserved * GIB])
    calibrated = calibration.calibrate(CARD)
    assert (calibrated.slack, calibrated.slack_runs) == (0.5, 3)  # 2 GiB of the 4 that come and go
    assert "in 3 runs on this GPU model" in calibrated.note
    assert calibration.calibrate(CARDS["t4"]) == calibration.Calibration()


def test_only_the_newest_runs_with_a_forecast_and_a_measurement_count(database: str) -> None:
    for _ in range(calibration.LEAST):
        finished([20 * GIB])
    finished([], FORECAST)
    for _ in range(calibration.RUNS):
        finished([11 * GIB])
    calibrated = calibration.calibrate(CARD)
    assert (calibrated.slack, calibrated.slack_runs) == (0.25, calibration.RUNS)


def test_a_forecast_uses_and_reports_the_calibrated_slack(model: Path) -> None:
    config, shape = RunConfig(model=str(model), data="none"), shapes.shape_at(str(model))
    usual = estimate_run(Setup(config, shape, CARD))
    measured = estimate_run(Setup(config, shape, CARD, calibration=calibration.Calibration(2 * SLACK, 7)))
    assert measured.forecast.parts["slack"] == pytest.approx(2 * usual.forecast.parts["slack"], abs=2)
    assert any("in 7 runs on this GPU model" in note for note in measured.notes)


def test_reading_a_calibration_does_not_create_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DATA_DIR=str(tmp_path))
    assert calibration.calibrate(CARD) == calibration.Calibration()
    assert not list(tmp_path.iterdir())

"""A run's metrics reach each experiment tracker; no tracker ends a run."""

import json
import os
import signal
import socket
import sqlite3
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model
from trainer_process import Trained, start
from transformers import TrainerControl, TrainerState, TrainingArguments

from training.config.run_config import RunConfig
from training.reports.experiment_trackers import ExperimentTrackers
from training.reports.report import Report
from training.run_folder.events import Metrics, Note
from training.run_folder.record import Lineage

pytestmark = pytest.mark.train
SHORT = {"max_steps": 6, "eval_steps": 3, "save_steps": 2, "report_project": "tests"}
RUN = Lineage("run0123456789", "a run")


def needs(tracker: str) -> Any:
    return pytest.mark.skipif(find_spec(tracker) is None, reason=f"{tracker} is not installed")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "tiny-llama"), make_data(folder / "data.jsonl")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    RUN.write(folder)
    return folder


def finished(run_dir: Path, inputs: tuple[Path, Path], **settings: Any) -> Trained:
    trained = start(run_dir, *inputs, **(SHORT | settings))
    assert trained.finish() == 0, trained.log()
    return trained


def stopped_after(step: int, run_dir: Path, inputs: tuple[Path, Path], **settings: Any) -> Trained:
    trained = start(run_dir, *inputs, **(SHORT | {"max_steps": 10_000} | settings))
    trained.wait_for(lambda event: isinstance(event, Metrics) and event.step >= step)
    for pid in trained.pids():
        os.kill(pid, signal.SIGTERM)
    assert trained.finish() == 0, trained.log()
    return trained


def warnings_of(trained: Trained) -> list[str]:
    return [note.message for note in trained.of(Note) if note.level == "warning"]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {name: {one.step: one.value for one in events.Scalars(name)} for name in events.Tags()["scalars"]}


@needs("tensorboard")
def test_tensorboard_shows_losses_speed_and_memory_in_the_runs_folder(run_dir: Path, inputs: tuple[Path, Path]) -> None:
    trained = finished(run_dir, inputs, report_to="tensorboard")
    shown = scalars(run_dir / "tensorboard")
    assert shown["train/loss"] == pytest.approx(trained.losses())
    assert shown["eval/loss"] == pytest.approx(trained.evaluations())
    assert set(shown["train/tokens_per_second"]) == set(trained.losses())
    assert min(shown["train/host_rss"].values()) > 2**20
    assert warnings_of(trained) == []


@needs("tensorboard")
def test_a_resumed_attempt_goes_on_in_the_same_tensorboard_folder(run_dir: Path, inputs: tuple[Path, Path]) -> None:
    first = stopped_after(3, run_dir, inputs, report_to="tensorboard")
    last = max(first.losses())
    second = finished(run_dir, inputs, report_to="tensorboard", max_steps=last + 3)
    shown = scalars(run_dir / "tensorboard")["train/loss"]
    assert sorted(shown) == list(range(1, last + 4))
    assert shown == pytest.approx(first.losses() | second.losses())


@needs("tensorboard")
def test_only_rank_0_reports_and_the_losses_of_each_data_set_arrive(
    tmp_path: Path, run_dir: Path, inputs: tuple[Path, Path]
) -> None:
    model, data = inputs
    other = make_data(tmp_path / "other.jsonl", rows=32)
    sets = json.dumps([{"path": str(data)}, {"path": str(other)}])
    settings = SHORT | {"strategy": "ddp", "num_processes": 2, "report_to": "tensorboard"}
    trained = start(run_dir, model, sets, **settings)
    assert trained.finish() == 0, trained.log()
    assert len(list((run_dir / "tensorboard").glob("events.*"))) == 1
    assert {"train/loss/data.jsonl", "train/loss/other.jsonl"} <= set(scalars(run_dir / "tensorboard"))


@needs("tensorboard")
def test_event_files_that_cannot_be_written_are_a_warning(run_dir: Path, inputs: tuple[Path, Path]) -> None:
    (run_dir / "tensorboard").write_text("a file in the place of the folder")
    trained = finished(run_dir, inputs, report_to="tensorboard")
    (message,) = warnings_of(trained)
    assert message.startswith("tensorboard did not take metrics of this run: ")
    assert trained.summary["steps"] == 6


@needs("wandb")
def test_an_offline_run_of_wandb_has_the_runs_id_name_and_metrics(
    run_dir: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    trained = finished(run_dir, inputs, report_to="wandb")
    assert warnings_of(trained) == []
    (file,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    assert file.name == f"run-{RUN.run}.wandb"
    for text in (b"a run", b"tests", b"train/loss", b"eval/loss", b"train/host_rss", b"lora_r"):
        assert text in content, text
    assert not [path for path in run_dir.rglob("*") if path.is_file() and b"k" * 40 in path.read_bytes()]


@needs("wandb")
def test_an_unreachable_wandb_server_is_a_warning(
    run_dir: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    trained = finished(run_dir, inputs, report_to="wandb")
    (message,) = warnings_of(trained)
    assert message.startswith("wandb did not take metrics of this run:")
    assert trained.summary["steps"] == 6


def mlflow_rows(store: Path, query: str) -> list[Any]:
    with sqlite3.connect(store) as connection:
        return connection.execute(query).fetchall()


@needs("mlflow")
def test_a_resumed_attempt_goes_on_in_the_same_mlflow_run(
    tmp_path: Path, run_dir: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    first = stopped_after(3, run_dir, inputs, report_to="mlflow")
    last = max(first.losses())
    second = finished(run_dir, inputs, report_to="mlflow", max_steps=last + 3, micro_batch_size=2)
    assert warnings_of(first) + warnings_of(second) == []
    assert mlflow_rows(
        store, "SELECT r.name, r.status, e.name FROM runs r JOIN experiments e USING (experiment_id)"
    ) == [("a run", "FINISHED", "tests")]
    losses = dict(mlflow_rows(store, "SELECT step, value FROM metrics WHERE key = 'loss' ORDER BY step"))
    assert losses == pytest.approx(first.losses() | second.losses())
    assert mlflow_rows(store, "SELECT value FROM tags WHERE key = 'lathe.run'") == [(RUN.run,)]
    assert mlflow_rows(store, "SELECT value FROM params WHERE key = 'lora_r'") == [("16",)]
    assert mlflow_rows(store, "SELECT count(*) > 0 FROM metrics WHERE key = 'host_rss'") == [(1,)]


@needs("mlflow")
def test_an_unreachable_mlflow_server_is_a_warning_without_the_password(
    run_dir: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret-word@127.0.0.1:{closed_port()}")
    trained = finished(run_dir, inputs, report_to="mlflow")
    (message,) = warnings_of(trained)
    assert message.startswith("mlflow did not take metrics of this run:")
    assert trained.summary["steps"] == 6
    assert not [path for path in run_dir.rglob("*") if path.is_file() and b"secret-word" in path.read_bytes()]


@needs("trackio")
def test_trackio_keeps_the_metrics_locally(
    tmp_path: Path, run_dir: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trained = finished(run_dir, inputs, report_to="trackio")
    assert warnings_of(trained) == []
    (store,) = (tmp_path / "trackio").glob("tests*.db")
    with sqlite3.connect(store) as connection:
        rows = connection.execute("SELECT run_name, metrics FROM metrics").fetchall()
    assert {name for name, _ in rows} == {f"a run {RUN.run}"}
    losses = {
        one["train/global_step"]: one["train/loss"] for _, text in rows if "train/loss" in (one := json.loads(text))
    }
    assert losses == pytest.approx(trained.losses())


def test_a_tracker_that_is_missing_on_the_worker_is_a_warning(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.config.name_values.find_spec", lambda _: None)
    config = RunConfig(model="any", data="any", report_to="wandb")
    trackers = ExperimentTrackers(config, run_dir, Report(run_dir, rank=0))
    trackers.on_train_begin(TrainingArguments(), TrainerState(), TrainerControl())
    with trackers.closed_at_end(hurried=lambda: False):
        trackers.log(TrainerState(), {"loss": 1.0})
    trained = Trained(run_dir, process=None)
    trained.read()
    (message,) = warnings_of(trained)
    assert message.startswith("wandb gets no metrics of this run: it is not installed. Run `pip install wandb`")

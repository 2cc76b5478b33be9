"""`lathe run --like`: the same run again, from the folder of a result."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import all_runs, answer, lathe
from played_run import PlayedRun
from tiny import make_data, make_model
from trainer_process import train_here

from training.run_folder.lineage import DataSource, Lineage
from worker.datasets import datasets
from worker.settings import get_settings

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
SETTINGS: dict[str, Any] = {"max_steps": 1, "eval_steps": 0, "eval_split": 4, "lora_r": 5, "seed": 11}


@pytest.fixture
def result(home: Path, tmp_path: Path) -> Path:
    """The adapter of a run whose data set is stored."""
    model, rows = make_model(tmp_path / "model"), make_data(tmp_path / "rows.jsonl")
    stored = datasets.add_file(path=rows, name="rows.jsonl")
    played = PlayedRun("orders", model=str(model), data=stored.id, **SETTINGS).claim()
    run_dir = get_settings().runs_dir / played.id
    run_dir.mkdir(parents=True, exist_ok=True)
    Lineage(played.id, "orders", "", 1, [DataSource("Training data", "rows.jsonl", stored.sha256)]).write(run_dir)
    train_here(run_dir, model, rows, **SETTINGS)
    return run_dir / "adapter"


def test_the_run_has_the_settings_and_the_data_of_the_result(result: Path, tmp_path: Path) -> None:
    record = json.loads((result / "lathe.json").read_text())
    queued = answer("run", "--like", str(result), "--model", str(tmp_path / "model"))["config"]
    assert {name: queued[name] for name in SETTINGS} == SETTINGS
    assert queued["data"] == record["data"][0]["sha256"][:16]
    assert str(tmp_path) not in json.dumps(record)


def test_what_differs_here_is_told_before_the_run_is_queued(result: Path, tmp_path: Path) -> None:
    record = json.loads((result / "lathe.json").read_text())
    record["packages"]["torch"] = "1.0"
    (result / "lathe.json").write_text(json.dumps(record))
    other = make_model(tmp_path / "other", layers=1)
    told = lathe("run", "--like", result, "--model", other, "--seed", "12").stderr
    assert "model.safetensors" in told
    assert "(was 1.0)" in told
    assert "seed 12 (was 11)" in told
    assert len(all_runs()) == 2


def test_a_model_or_a_data_set_that_is_not_here_is_named_with_its_option(result: Path, tmp_path: Path) -> None:
    assert "--model" in lathe("run", "--like", result).stderr
    record = json.loads((result / "lathe.json").read_text())
    record["data"][0]["sha256"] = "ab" * 32
    (result / "lathe.json").write_text(json.dumps(record))
    told = lathe("run", "--like", result, "--model", tmp_path / "model").stderr
    assert "rows.jsonl" in told
    assert "--data" in told
    (result / "lathe.json").unlink()
    assert "has no readable lathe.json" in lathe("run", "--like", result).stderr

"""`lathe run --like`: the same run again, from the folder of a result."""

import json
from pathlib import Path

import pytest
from commands import all_runs, answer, lathe
from played_run import PlayedRun
from trained import CACHE, RECIPES, copy_of, model

from worker.datasets import datasets
from worker.settings import get_settings

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
LIKE = RECIPES["like"]


@pytest.fixture
def result(home: Path) -> Path:
    """The adapter of a run whose data set is stored."""
    stored = datasets.add_file(path=LIKE.inputs[1], name="counting.jsonl")
    played = PlayedRun("orders", model=str(LIKE.inputs[0]), data=stored.id, **LIKE.settings).claim()
    return copy_of(LIKE, get_settings().runs_dir / played.id) / "adapter"


def test_the_run_has_the_settings_and_the_data_of_the_result(result: Path) -> None:
    record = json.loads((result / "lathe.json").read_text())
    queued = answer("run", "--like", str(result), "--model", str(LIKE.inputs[0]))["config"]
    assert {name: queued[name] for name in LIKE.settings} == LIKE.settings
    assert queued["data"] == record["data"][0]["sha256"][:16]
    assert str(CACHE) not in json.dumps(record)


def test_what_differs_here_is_told_before_the_run_is_queued(result: Path) -> None:
    record = json.loads((result / "lathe.json").read_text())
    record["packages"]["torch"] = "1.0"
    (result / "lathe.json").write_text(json.dumps(record))
    told = lathe("run", "--like", result, "--model", model("llama_of_one_layer"), "--seed", "12").stderr
    assert "model.safetensors" in told
    assert "(was 1.0)" in told
    assert "seed 12 (was 11)" in told
    assert len(all_runs()) == 2


def test_a_model_or_a_data_set_that_is_not_here_is_named_with_its_option(result: Path) -> None:
    assert "--model" in lathe("run", "--like", result).stderr
    record = json.loads((result / "lathe.json").read_text())
    record["data"][0]["sha256"] = "ab" * 32
    (result / "lathe.json").write_text(json.dumps(record))
    told = lathe("run", "--like", result, "--model", LIKE.inputs[0]).stderr
    assert "counting.jsonl" in told
    assert "--data" in told
    (result / "lathe.json").unlink()
    assert "has no readable lathe.json" in lathe("run", "--like", result).stderr

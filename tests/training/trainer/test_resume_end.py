"""A run resumed after its last step takes no more steps; it evaluates, saves and answers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny import make_data, make_model
from trainer_process import Trained, train_here

from training.run_folder.events import Metrics, Resumed

pytestmark = pytest.mark.train
SETTINGS: dict[str, Any] = {
    "method": "full",
    "micro_batch_size": 4,
    "eval_split": 4,
    "precision": "fp32",
    "save_steps": 3,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    model = make_model(folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.2}))
    return model, make_data(folder / "data.jsonl", rows=32)


def steps_after_resume(trained: Trained) -> list[int]:
    """Returns the steps with a reported loss after the last Resumed."""
    place = max(index for index, event in enumerate(trained.events) if isinstance(event, Resumed))
    return [event.step for event in trained.events[place:] if isinstance(event, Metrics) and "loss" in event.values]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_steps": 6, "eval_steps": 0},  # in the middle of the first epoch
        {"max_steps": None, "epochs": 1, "save_strategy": "epoch", "eval_strategy": "epoch"},
        {"max_steps": 6, "load_best_at_end": True, "eval_steps": 2, "learning_rate": 0.5},
    ],
    ids=["mid epoch", "end of the epoch", "best checkpoint"],
)
def test_no_step_is_taken_after_the_last(tmp_path: Path, inputs: tuple[Path, Path], settings: dict[str, Any]) -> None:
    first = train_here(tmp_path, *inputs, **SETTINGS | settings)
    result = load_file(tmp_path / "model" / "model.safetensors")
    shutil.rmtree(tmp_path / "model")
    again = train_here(tmp_path, *inputs, **SETTINGS | settings)
    assert again.of(Resumed)[-1].step == first.summary["steps"]
    assert steps_after_resume(again) == []
    assert again.summary["steps"] == first.summary["steps"]
    assert again.summary["eval_loss"] == pytest.approx(first.summary["eval_loss"], rel=1e-6)
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert all(saved[name].equal(tensor) for name, tensor in result.items())


def test_a_run_that_stopped_early_stays_stopped(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    early = {"max_steps": 20, "eval_steps": 1, "save_steps": 1, "early_stopping_patience": 2, "learning_rate": 0.9}
    first = train_here(tmp_path, *inputs, **SETTINGS | early)
    assert first.summary["steps"] < 20
    again = train_here(tmp_path, *inputs, **SETTINGS | early)
    assert (again.of(Resumed)[-1].step, again.summary["steps"]) == (first.summary["steps"],) * 2
    assert steps_after_resume(again) == []


def test_a_missing_evaluation_of_an_epoch_is_done_after_a_resume(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    by_epoch = {"max_steps": None, "epochs": 2, "eval_strategy": "epoch", "save_steps": 7}  # an epoch has seven steps
    whole = train_here(tmp_path, *inputs, **SETTINGS | by_epoch)
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-14")
    (tmp_path / "events.jsonl").unlink()
    again = train_here(tmp_path, *inputs, **SETTINGS | by_epoch)
    assert again.of(Resumed)[0].step == 7
    assert again.evaluations() == pytest.approx(whole.evaluations(), rel=1e-6)
    assert again.losses() == {step: loss for step, loss in whole.losses().items() if step > 7}


def test_a_resumed_stream_has_the_same_dropout(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    streamed = {"streaming": True, "max_steps": 6, "eval_steps": 2}
    whole = train_here(tmp_path, *inputs, **SETTINGS | streamed)
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-6")
    (tmp_path / "events.jsonl").unlink()
    again = train_here(tmp_path, *inputs, **SETTINGS | streamed)
    assert again.of(Resumed)[0].step == 3
    assert again.losses() == {step: loss for step, loss in whole.losses().items() if step > 3}
    assert again.gradient_norms() == {step: norm for step, norm in whole.gradient_norms().items() if step > 3}

"""An optimizer that steps in the backward pass trains as one that steps after it, and holds one gradient at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_data, make_model
from trainer_process import Trained, train_here

from training.trainer.optimizers import StepInBackward

pytestmark = pytest.mark.train
SETTINGS: dict[str, Any] = {
    "method": "full",
    "max_grad_norm": 0,
    "learning_rate": 1e-3,
    "eval_steps": 0,
    "max_steps": 4,
    "weight_decay": 0.1,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("in_backward")
    make_model(home / "model")
    make_data(home / "rows.jsonl")
    return home


def run(home: Path, folder: Path, **settings: Any) -> Trained:
    return train_here(folder, home / "model", home / "rows.jsonl", **SETTINGS | settings)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "muon", "adafactor"])
def test_losses_and_gradient_norms_are_the_same(home: Path, tmp_path: Path, optimizer: str) -> None:
    after = run(home, tmp_path / "after", optimizer=optimizer)
    within = run(home, tmp_path / "within", optimizer=optimizer, optimizer_in_backward=True)
    assert within.losses() == after.losses() and len(within.losses()) == 4
    assert within.gradient_norms() == pytest.approx(after.gradient_norms(), rel=1e-5)
    assert saved(tmp_path / "within") == saved(tmp_path / "after")


def saved(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def test_a_resumed_run_ends_as_one_without_interruption(home: Path, tmp_path: Path) -> None:
    whole = run(home, tmp_path / "whole", optimizer_in_backward=True, save_steps=2)
    folder = tmp_path / "resumed"
    folder.mkdir()
    (folder / "checkpoints").mkdir()
    (tmp_path / "whole" / "checkpoints" / "checkpoint-2").rename(folder / "checkpoints" / "checkpoint-2")
    resumed = run(home, folder, optimizer_in_backward=True, save_steps=2)
    assert list(resumed.losses()) == [3, 4]
    assert resumed.losses() == {step: whole.losses()[step] for step in (3, 4)}
    assert saved(folder) == saved(tmp_path / "whole")


def test_the_probe_changes_nothing(home: Path, tmp_path: Path) -> None:
    plain = run(home, tmp_path / "plain", optimizer_in_backward=True)
    probed = run(home, tmp_path / "probed", optimizer_in_backward=True, probe="on")
    assert probed.losses() == plain.losses()
    assert saved(tmp_path / "probed") == saved(tmp_path / "plain")


def test_no_two_gradients_are_in_memory_at_once() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    weights = list(layers.parameters())
    steps = StepInBackward(torch.optim.SGD(weights, lr=0.1))
    seen = []
    for weight in weights:  # called after the step of the same weight
        weight.register_post_accumulate_grad_hook(lambda _: seen.append(sum(w.grad is not None for w in weights)))
    layers(torch.ones(2, 8)).sum().backward()
    assert seen == [0] * len(weights)
    norm = steps.take_norm()
    assert norm is not None and norm > 0 and steps.take_norm() is None

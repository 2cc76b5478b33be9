"""Evaluations by epoch, their perplexity, early stopping, and the result of the best evaluation."""

import math
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny import make_data, make_model
from trained import trained
from trainer_process import Trained, start, train_here

from training.run_folder import checkpoints as manifest
from training.run_folder.events import CheckpointSaved, Metrics, Note, Planned
from training.run_folder.paths import checkpoints_dir
from training.trainer.callbacks import Evaluation, evaluations_without_gain
from training.trainer.evaluation import perplexity


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and answers so long that a high learning rate soon overfits."""
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_data(folder / "data.jsonl")


# After the first evaluation the loss falls by less than this.
WORSE = {"early_stopping_threshold": 5.0, "eval_steps": 2, "max_steps": 12}
# This high learning rate makes the loss rise again.
DIVERGING = {"learning_rate": 1.0, "warmup": 6, "eval_steps": 1, "max_steps": 6, "method": "full"}


def notes(run: Trained) -> str:
    return " ".join(note.message for note in run.of(Note))


@pytest.mark.train
def test_every_evaluation_loss_has_a_perplexity() -> None:
    run = trained("sft_lora")
    evaluations = [event.values for event in run.of(Metrics) if "eval_loss" in event.values]
    assert [values["eval_perplexity"] for values in evaluations] == [
        math.exp(values["eval_loss"]) for values in evaluations
    ]
    assert len(evaluations) == 2
    assert run.summary["eval_perplexity"] == math.exp(run.summary["eval_loss"])


def test_the_perplexity_of_a_huge_loss_is_infinite() -> None:
    assert perplexity(1e6) == math.inf


@pytest.mark.train
def test_evaluation_and_checkpoints_by_epoch(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    by_epoch = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "max_steps": None,
        "epochs": 2,
        "micro_batch_size": 14,
    }
    run = train_here(tmp_path, *inputs, **by_epoch, eval_steps=1, save_steps=1)
    assert run.of(Planned)[0].total_steps == 8
    assert list(run.evaluations()) == [4, 8]
    assert [saved.step for saved in run.of(CheckpointSaved)] == [4, 8]


@pytest.mark.train
def test_early_stopping_ends_the_run_with_a_note(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    run = train_here(tmp_path, *inputs, **WORSE, early_stopping_patience=2)
    assert list(run.evaluations()) == [2, 4, 6]
    assert run.summary["steps"] == 6
    assert "Stopped early at step 6: 2 evaluations in a row" in notes(run)


@pytest.mark.train
def test_early_stopping_keeps_counting_after_a_resume(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    train_here(tmp_path, *inputs, **(WORSE | {"max_steps": 4}), save_steps=4, early_stopping_patience=3)
    resumed = train_here(tmp_path, *inputs, **WORSE, save_steps=4, early_stopping_patience=3)
    assert resumed.summary["steps"] == 8  # evaluations at 2 and 4 before, at 6 and 8 after


@pytest.mark.train
def test_the_result_is_the_best_checkpoint(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    run = train_here(tmp_path, *inputs, **DIVERGING, save_steps=1, save_total_limit=1, load_best_at_end=True)
    losses = run.evaluations()
    lowest = min(losses, key=losses.__getitem__)
    assert lowest < 5
    names = sorted(path.name for path in checkpoints_dir(tmp_path).iterdir())
    assert names == [f"checkpoint-{lowest}", "checkpoint-6"]
    result = load_file(tmp_path / "model/model.safetensors")
    saved = load_file(tmp_path / f"checkpoints/checkpoint-{lowest}/model.safetensors")
    assert all(result[name].equal(saved[name]) for name in saved)
    assert run.summary["eval_loss"] == losses[lowest]
    assert f"The result is that of step {lowest}" in notes(run)


@pytest.mark.train
def test_with_a_damaged_best_checkpoint_the_result_is_the_last_step(
    tmp_path: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "fault", lambda _: "weights are missing")
    run = train_here(tmp_path, *inputs, **DIVERGING, load_best_at_end=True)
    assert "is unusable: weights are missing" in notes(run)
    assert run.summary["eval_loss"] == run.evaluations()[6]


@pytest.mark.train
def test_zero3_loads_the_best_adapter_on_two_ranks(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    sharded = {"strategy": "zero3", "num_processes": 2, "micro_batch_size": 2, "method": "lora"}
    run = start(tmp_path, *inputs, **(DIVERGING | sharded | {"eval_steps": 2}), load_best_at_end=True)
    assert run.finish() == 0, run.log()
    losses = run.evaluations()
    lowest = min(losses, key=losses.__getitem__)
    assert lowest < 5
    result = load_file(tmp_path / "adapter/adapter_model.safetensors")
    saved = load_file(tmp_path / f"checkpoints/checkpoint-{lowest}/adapter_model.safetensors")
    assert all(result[name].equal(saved[name]) for name in saved)


@pytest.mark.parametrize(
    ("losses", "threshold", "count"),
    [
        ([], 0, 0),
        ([3.0], 0, 0),
        ([3.0, 2.0, 2.0, 2.5], 0, 2),
        ([3.0, 2.9, 2.8], 0.5, 2),
        ([3.0, math.nan, 2.0], 0, 0),
        ([math.nan, math.nan], 0, 2),
    ],
)
def test_evaluations_without_gain_are_counted(losses: list[float], threshold: float, count: int) -> None:
    assert evaluations_without_gain([Evaluation(step, loss) for step, loss in enumerate(losses)], threshold) == count

"""Evaluations by epoch, their perplexity, early stopping, and the result of the best evaluation."""

import math
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny import make_data, make_model
from trainer_process import Trained, start, train_here

from training import manifest
from training.best import Evaluation, without_gain
from training.evaluation import perplexity
from training.events import CheckpointSaved, Metrics, Note, Planned


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and answers so long that a high learning rate soon fits the rows and no longer the held-out ones."""
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_data(folder / "data.jsonl")


# Whatever falls falls by less than this after the first evaluation.
WORSE = {"early_stopping_threshold": 5.0, "eval_steps": 2, "max_steps": 12}
# A rate that rises so high drives the loss up again.
DIVERGING = {"learning_rate": 1.0, "warmup": 6, "eval_steps": 1, "max_steps": 6, "method": "full"}


def notes(trained: Trained) -> str:
    return " ".join(note.message for note in trained.of(Note))


def test_perplexity_is_kept_beside_every_evaluation_loss(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    trained = train_here(tmp_path, *inputs)
    told = [event.values for event in trained.of(Metrics) if "eval_loss" in event.values]
    assert [values["eval_perplexity"] for values in told] == [math.exp(values["eval_loss"]) for values in told]
    assert len(told) == 2
    assert trained.summary["eval_perplexity"] == math.exp(trained.summary["eval_loss"])


def test_the_perplexity_of_a_loss_beyond_all_numbers_is_infinite() -> None:
    assert perplexity(1e6) == math.inf


def test_evaluation_and_checkpoints_by_epoch(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    by_epoch = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "max_steps": None,
        "epochs": 2,
        "micro_batch_size": 14,
    }
    trained = train_here(tmp_path, *inputs, **by_epoch, eval_steps=1, save_steps=1)
    assert trained.of(Planned)[0].total_steps == 8
    assert list(trained.evaluations()) == [4, 8]
    assert [saved.step for saved in trained.of(CheckpointSaved)] == [4, 8]


def test_a_run_that_no_longer_gets_better_stops_and_says_so(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    trained = train_here(tmp_path, *inputs, **WORSE, early_stopping_patience=2)
    assert list(trained.evaluations()) == [2, 4, 6]
    assert trained.summary["steps"] == 6
    assert "Stopped early at step 6: 2 evaluations in a row" in notes(trained)


def test_patience_goes_on_counting_where_a_run_was_resumed(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    train_here(tmp_path, *inputs, **(WORSE | {"max_steps": 4}), save_steps=4, early_stopping_patience=3)
    resumed = train_here(tmp_path, *inputs, **WORSE, save_steps=4, early_stopping_patience=3)
    assert resumed.summary["steps"] == 8  # evaluations at 2 and 4 before, at 6 and 8 after


def test_the_result_is_the_best_checkpoint_though_newer_ones_are_kept(
    tmp_path: Path, inputs: tuple[Path, Path]
) -> None:
    trained = train_here(tmp_path, *inputs, **DIVERGING, save_steps=1, save_total_limit=1, load_best_at_end=True)
    losses = trained.evaluations()
    lowest = min(losses, key=losses.__getitem__)
    assert lowest < 5
    kept = sorted(path.name for path in manifest.checkpoints_dir(tmp_path).iterdir())
    assert kept == [f"checkpoint-{lowest}", "checkpoint-6"]
    result = load_file(tmp_path / "model/model.safetensors")
    saved = load_file(tmp_path / f"checkpoints/checkpoint-{lowest}/model.safetensors")
    assert all(result[name].equal(saved[name]) for name in saved)
    assert trained.summary["eval_loss"] == losses[lowest]
    assert f"The result is that of step {lowest}" in notes(trained)


def test_a_best_checkpoint_that_was_damaged_leaves_the_last_weights(
    tmp_path: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "fault", lambda _: "weights are missing")
    trained = train_here(tmp_path, *inputs, **DIVERGING, load_best_at_end=True)
    assert "cannot be used, weights are missing" in notes(trained)
    assert trained.summary["eval_loss"] == trained.evaluations()[6]


@pytest.mark.train
def test_two_ranks_of_zero3_go_back_to_the_best_adapter_together(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    sharded = {"strategy": "zero3", "num_processes": 2, "micro_batch_size": 2, "method": "lora"}
    trained = start(tmp_path, *inputs, **(DIVERGING | sharded | {"eval_steps": 2}), load_best_at_end=True)
    assert trained.finish() == 0, trained.log()
    losses = trained.evaluations()
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
    assert without_gain([Evaluation(step, loss) for step, loss in enumerate(losses)], threshold) == count

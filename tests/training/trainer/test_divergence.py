"""A run whose loss or gradient is no longer finite stops, and its result is its best checkpoint with finite weights."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trained import Recipe
from trainer_process import Trained, start_diverging

from training.run_folder import checkpoints
from training.run_folder.events import DIVERGED, Finished, Resumed
from training.trainer.divergence import Divergence, best_first
from training.trainer.global_batch import GlobalBatchTrainer

pytestmark = pytest.mark.train
SETTINGS: dict[str, Any] = {
    "max_steps": 12,
    "save_steps": 2,
    "save_total_limit": 9,
    "eval_steps": 0,
    "precision": "fp32",
}


def nan_from(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each loss NaN from a step on, and with it the gradient."""
    loss_of = GlobalBatchTrainer.compute_loss

    def broken(self: Any, *arguments: Any, **named: Any) -> Any:
        return loss_of(self, *arguments, **named) * (math.nan if self.state.global_step + 1 >= step else 1)

    monkeypatch.setattr(GlobalBatchTrainer, "compute_loss", broken)


def ended(run: Trained) -> Finished:
    (event,) = run.of(Finished)
    return event


def test_a_diverged_run_stops_and_its_result_is_its_last_finite_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan_from(5, monkeypatch)
    run = Recipe(settings=SETTINGS | {"save_steps": 4, "verify_rows": 1}).train(tmp_path / "run")
    assert (ended(run).outcome, ended(run).step) == (DIVERGED, 4)
    assert 7 <= run.summary["diverged_at"] <= 8  # of 12 steps
    assert run.summary["final_loss"] == run.losses()[4]
    assert run.summary["parity"]["equal"]
    assert [path.name for path in checkpoints.sealed(run.run_dir)] == ["checkpoint-4"]
    result, saved = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (run.run_dir / "adapter", run.run_dir / "checkpoints/checkpoint-4")
    )
    assert result and all(torch.equal(result[name], saved[name]) for name in result)


def test_a_checkpoint_is_not_saved_once_weights_are_nan_and_the_best_evaluation_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan_from(6, monkeypatch)
    rising = {2: 1.0, 4: 2.0}  # evaluation losses
    evaluate = GlobalBatchTrainer.evaluation_loop

    def evaluation_loop(self: Any, *arguments: Any, **named: Any) -> Any:
        output = evaluate(self, *arguments, **named)
        output.metrics["eval_loss"] = rising.get(self.state.global_step, math.nan)
        return output

    monkeypatch.setattr(GlobalBatchTrainer, "evaluation_loop", evaluation_loop)
    run = Recipe(settings=SETTINGS | {"eval_steps": 2, "divergence_steps": 100}).train(tmp_path / "run")
    assert (ended(run).outcome, ended(run).step, run.summary["diverged_at"]) == (DIVERGED, 2, 6)
    assert run.summary["eval_loss"] == 1.0
    assert [path.name for path in checkpoints.sealed(run.run_dir)] == ["checkpoint-4", "checkpoint-2"]


def test_it_steps_back_once_with_a_tenth_of_the_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(settings=SETTINGS | {"on_divergence": "step_back", "lr_scheduler": "cosine"})
    with monkeypatch.context() as planted:
        nan_from(5, planted)
        first = recipe.train(tmp_path / "run")
    assert (ended(first).outcome, ended(first).step) == (DIVERGED, 4)
    changes = first.summary["changes"]
    assert changes == {"learning_rate": pytest.approx(1e-3), "on_divergence": "stop"}
    assert not (first.run_dir / "adapter").exists()
    (first.run_dir / "events.jsonl").unlink()
    second = recipe.train(tmp_path / "run", **changes)
    assert [event.step for event in second.of(Resumed)] == [4]
    assert ended(second).outcome == "finished"
    undisturbed = Recipe(settings=SETTINGS | {"lr_scheduler": "cosine"}).train(tmp_path / "undisturbed")
    rates, usual = second.series("learning_rate"), undisturbed.series("learning_rate")
    assert rates == pytest.approx({step: usual[step] / 10 for step in range(5, 13)})


def test_without_a_checkpoint_there_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nan_from(1, monkeypatch)
    run = Recipe(settings=SETTINGS | {"save_steps": 0}).train(tmp_path / "run")
    assert (ended(run).outcome, ended(run).step) == (DIVERGED, 0)
    assert not (run.run_dir / "adapter").exists() and not checkpoints.sealed(run.run_dir)


@pytest.mark.parametrize("strategy", ["zero3", pytest.param("fsdp", marks=pytest.mark.nightly)])
def test_ranks_agree_if_only_one_of_them_sees_it(tmp_path: Path, strategy: str) -> None:
    settings = SETTINGS | {"strategy": strategy, "num_processes": 2, "micro_batch_size": 2, "verify_rows": 1}
    run = start_diverging(tmp_path / "run", *Recipe().inputs, 5, **settings)
    assert run.finish() == 0, run.log()
    assert ended(run).outcome == DIVERGED
    assert ended(run).step in (4, 6)  # DeepSpeed skips steps with NaN, so that weights stay finite
    assert run.summary["parity"]["equal"]


def test_single_steps_are_no_divergence_and_a_scaler_may_skip_gradients() -> None:
    nan, one = torch.tensor(math.nan), torch.tensor(1.0)
    plain, scaled = (Divergence(2, torch.device("cpu"), scaled=scaled) for scaled in (False, True))
    for loss, norm in [(nan, 1.0), (one, 1.0), (one, math.inf), (nan, 1.0)]:
        for one_of in (plain, scaled):
            one_of.add_loss(loss)
            one_of.add_norm(norm)
            one_of.end_step()
        assert not plain.seen
    plain.end_step()
    scaled.end_step()
    assert plain.seen and not scaled.seen


def test_the_lowest_evaluation_comes_first_then_the_newest() -> None:
    saved = [Path(f"checkpoint-{step}") for step in (8, 6, 4, 2)]
    assert [path.name[-1] for path in best_first({2: 0.5, 4: 0.4, 6: math.inf}, saved)] == ["4", "2", "8", "6"]
    assert best_first({}, saved) == saved

"""A stopped, killed or damaged run resumes from its last complete checkpoint with the same result."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained import Recipe, copy_of, resumable, trained
from trainer_process import start, start_cold, start_held

from training.run_folder import checkpoints
from training.run_folder.events import CheckpointSaved, Finished, Metrics, Note, PhaseStarted, Resumed

pytestmark = pytest.mark.train
RECIPE = resumable("single", "lora")


def at_step(step: int) -> Any:
    return lambda event: isinstance(event, Metrics) and event.step >= step and "loss" in event.values


def test_a_killed_run_resumes_with_the_same_losses(tmp_path: Path) -> None:
    killed = start_held(tmp_path, *RECIPE.inputs, hold=3, **RECIPE.settings)
    killed.wait_for(lambda event: isinstance(event, CheckpointSaved))  # written beside the training
    killed.wait_for(at_step(3))
    os.kill(killed.pids()[0], signal.SIGKILL)
    assert killed.finish() != 0
    resumed = start(tmp_path, *RECIPE.inputs, **RECIPE.settings)
    assert resumed.finish() == 0, resumed.log()
    assert resumed.of(Resumed)[0].step == 2
    assert min(resumed.losses()) == 3
    assert killed.losses() | resumed.losses() == pytest.approx(trained(RECIPE).losses(), rel=1e-5)


def test_a_stopped_run_of_two_ranks_saves_exits_and_resumes(tmp_path: Path) -> None:
    recipe = resumable("zero2", "full")
    settings = recipe.settings | {"save_steps": 0}
    stopped = start_held(tmp_path, *recipe.inputs, hold=2, **settings)
    stopped.wait_for(at_step(2))
    for pid in stopped.pids():
        os.kill(pid, signal.SIGTERM)
    (tmp_path / "go").touch()
    assert stopped.finish() == 0, stopped.log()
    [end] = stopped.of(Finished)
    assert (end.outcome, end.step) == ("stopped", 3)
    assert [event.step for event in stopped.of(CheckpointSaved)] == [3]
    resumed = start(tmp_path, *recipe.inputs, **settings)
    assert resumed.finish() == 0, resumed.log()
    assert resumed.of(Resumed)[0].step == 3
    assert stopped.losses() | resumed.losses() == pytest.approx(trained(recipe).losses(), rel=1e-5)


def test_sequence_parallel_ranks_resume_within_an_epoch(tmp_path: Path) -> None:
    shared = {"strategy": "zero2", "num_processes": 2, "sequence_parallel_size": 2, "max_length": 64}
    recipe = Recipe("llama", "counting", shared | {"max_steps": 4, "save_steps": 3, "eval_steps": 0})
    again = recipe.train(copy_of(recipe, tmp_path / "run", "checkpoint-4", "events.jsonl", "adapter"))
    assert again.of(Resumed)[0].step == 3
    assert again.losses() == pytest.approx({4: trained(recipe).losses()[4]}, rel=1e-6)


def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(tmp_path: Path) -> None:
    run_dir = copy_of(RECIPE, tmp_path / "run", "events.jsonl", "adapter")
    newest = checkpoints.sealed(run_dir)[0]
    damaged = newest / "adapter_model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    resumed = RECIPE.train(run_dir)
    [event] = resumed.of(Resumed)
    assert (newest.name, event.step) == ("checkpoint-4", 2)
    assert event.rejected == [f"{newest.name}: adapter_model.safetensors is damaged (its hash differs)"]
    assert resumed.losses()[4] == pytest.approx(trained(RECIPE).losses()[4], rel=1e-5)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


SHARDS = {"zero3": "*zero_pp_rank_1_*", "fsdp": "__1_*.distcp"}
"""Files of a checkpoint that rank 1 writes."""


def shards_of_rank_1(checkpoint: Path, strategy: str) -> list[Path]:
    return sorted(checkpoint.rglob(SHARDS[strategy]))


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", sorted(SHARDS))
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (flip, "is damaged (its hash differs)"),
        (truncate, "bytes instead of"),
        (Path.unlink, "is missing"),
    ],
)
def test_two_ranks_skip_a_checkpoint_of_which_one_shard_is_damaged(
    tmp_path: Path, strategy: str, damage: Callable[[Path], None], why: str
) -> None:
    recipe = resumable(strategy, "full")
    run_dir = copy_of(recipe, tmp_path / "run", "events.jsonl", "model")
    newest, before = checkpoints.sealed(run_dir)[:2]
    damage(shards_of_rank_1(newest, strategy)[-1])
    resumed = recipe.train(run_dir)
    [event] = resumed.of(Resumed)
    assert event.path == before.name
    [reason] = event.rejected
    assert reason.startswith(f"{newest.name}: ") and why in reason
    assert resumed.losses()[4] == pytest.approx(trained(recipe).losses()[4], rel=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", sorted(SHARDS))
def test_two_ranks_begin_again_if_each_checkpoint_has_a_damaged_shard(tmp_path: Path, strategy: str) -> None:
    recipe = resumable(strategy, "full")
    run_dir = copy_of(recipe, tmp_path / "run", "events.jsonl", "model")
    for checkpoint in checkpoints.sealed(run_dir):
        flip(shards_of_rank_1(checkpoint, strategy)[0])
    again = recipe.train(run_dir)
    assert again.of(Resumed) == []
    [warning] = [note.message for note in again.of(Note) if "No checkpoint is complete" in note.message]
    assert warning.count("is damaged (its hash differs)") == 2
    assert again.losses() == pytest.approx(trained(recipe).losses(), rel=1e-5)


def test_a_stop_before_training_exits_at_once_without_leftovers(tmp_path: Path) -> None:
    stopped = start_cold(tmp_path, *RECIPE.inputs, **RECIPE.settings)  # a stop while the libraries are imported
    stopped.wait_for(lambda event: isinstance(event, PhaseStarted) and event.phase == "starting")
    os.kill(stopped.pids()[0], signal.SIGTERM)
    assert stopped.finish() == 0, stopped.log()
    assert stopped.of(Finished)[0].outcome == "stopped"
    assert not (tmp_path / "adapter").exists() and not (tmp_path / "checkpoints").exists()

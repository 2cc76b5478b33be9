"""A stopped, killed or damaged run resumes from its last complete checkpoint with the same result."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model
from trainer_process import Trained, start, start_cold

from training.run_folder import checkpoints
from training.run_folder.events import CheckpointSaved, Event, Finished, Metrics, PhaseStarted, Resumed

pytestmark = pytest.mark.train

SETTINGS: dict[str, Any] = {
    "max_steps": 16,
    "save_steps": 4,
    "eval_steps": 0,
    "lora_dropout": 0.1,
    "lr_scheduler": "cosine",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_data(folder / "data.jsonl", rows=48)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, inputs: tuple[Path, Path]) -> Trained:
    trained = start(tmp_path_factory.mktemp("whole"), *inputs, **SETTINGS)
    assert trained.finish() == 0, trained.log()
    return trained


def at_step(step: int) -> Any:
    return lambda event: isinstance(event, Metrics) and event.step >= step and "loss" in event.values


def sealed(event: Event) -> bool:
    return isinstance(event, CheckpointSaved)


def test_a_killed_run_resumes_with_the_same_losses(tmp_path: Path, inputs: tuple[Path, Path], whole: Trained) -> None:
    killed = start(tmp_path, *inputs, **SETTINGS)
    killed.wait_for(lambda event: isinstance(event, CheckpointSaved))  # written beside the training
    killed.wait_for(at_step(6))
    os.kill(killed.pids()[0], signal.SIGKILL)
    assert killed.finish() != 0
    resumed = start(tmp_path, *inputs, **SETTINGS)
    assert resumed.finish() == 0, resumed.log()
    first = resumed.of(Resumed)[0].step
    assert first in (4, 8, 12)
    assert killed.losses() | resumed.losses() == pytest.approx(whole.losses(), rel=1e-5)
    assert min(resumed.losses()) == first + 1


def test_a_stopped_run_of_two_ranks_saves_exits_and_resumes(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    settings = SETTINGS | {
        "strategy": "zero2",
        "num_processes": 2,
        "micro_batch_size": 2,
        "save_steps": 0,
        "lora_dropout": 0.0,
    }
    stopped = start(tmp_path / "run", *inputs, **settings)
    stopped.wait_for(at_step(3))
    for pid in stopped.pids():
        os.kill(pid, signal.SIGTERM)
    assert stopped.finish() == 0, stopped.log()
    end = stopped.of(Finished)[0]
    assert end.outcome == "stopped" and 3 <= end.step < 16
    assert [event.step for event in stopped.of(CheckpointSaved)] == [end.step]
    resumed = start(tmp_path / "run", *inputs, **settings)
    assert resumed.finish() == 0, resumed.log()
    assert resumed.of(Resumed)[0].step == end.step
    losses = stopped.losses() | resumed.losses()
    undisturbed = start(tmp_path / "undisturbed", *inputs, **settings)
    assert undisturbed.finish() == 0, undisturbed.log()
    assert losses == pytest.approx(undisturbed.losses(), rel=1e-5)


def test_fsdp_resumes_from_a_sharded_checkpoint_with_the_same_losses(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    settings = SETTINGS | {"strategy": "fsdp", "num_processes": 2, "micro_batch_size": 2, "lora_dropout": 0.0}
    whole = start(tmp_path, *inputs, **settings | {"max_steps": 8})
    assert whole.finish() == 0, whole.log()
    shutil.rmtree(tmp_path / "checkpoints/checkpoint-8")
    again = start(tmp_path, *inputs, **settings | {"max_steps": 8})
    assert again.finish() == 0, again.log()
    assert again.of(Resumed)[0].step == 4
    assert again.losses() == {step: loss for step, loss in whole.losses().items() if step > 4}


def test_sequence_parallel_ranks_resume_within_an_epoch(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    shared = {"strategy": "zero2", "num_processes": 2, "sequence_parallel_size": 2, "max_length": 64}
    settings = SETTINGS | shared | {"max_steps": 4, "save_steps": 3, "lora_dropout": 0.0}
    whole = start(tmp_path, *inputs, **settings)
    assert whole.finish() == 0, whole.log()
    shutil.rmtree(tmp_path / "checkpoints/checkpoint-4")
    again = start(tmp_path, *inputs, **settings)
    assert again.finish() == 0, again.log()
    assert again.of(Resumed)[0].step == 3
    assert again.losses()[4] == pytest.approx(whole.losses()[4], rel=1e-6)


def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(
    tmp_path: Path, inputs: tuple[Path, Path], whole: Trained
) -> None:
    killed = start(tmp_path, *inputs, **SETTINGS)
    killed.wait_for(lambda event: isinstance(event, CheckpointSaved) and event.step == 8)
    os.kill(killed.pids()[0], signal.SIGKILL)
    killed.finish()
    newest = checkpoints.sealed(tmp_path)[0]
    for path in checkpoints.unsealed(tmp_path):  # it was being written
        shutil.rmtree(path)
    damaged = newest / "adapter_model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    resumed = start(tmp_path, *inputs, **SETTINGS)
    event = resumed.wait_for(lambda event: isinstance(event, Resumed))
    assert isinstance(event, Resumed)
    assert event.step < int(newest.name.split("-")[1])
    assert event.rejected == [f"{newest.name}: adapter_model.safetensors is damaged (its hash differs)"]
    assert resumed.finish() == 0, resumed.log()
    assert resumed.losses()[16] == pytest.approx(whole.losses()[16], rel=1e-5)


def test_a_stop_before_training_exits_at_once_without_leftovers(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    stopped = start_cold(tmp_path, *inputs, **SETTINGS)  # a stop while the libraries are imported
    stopped.wait_for(lambda event: isinstance(event, PhaseStarted) and event.phase == "starting")
    os.kill(stopped.pids()[0], signal.SIGTERM)
    assert stopped.finish() == 0, stopped.log()
    assert stopped.of(Finished)[0].outcome == "stopped"
    assert not (tmp_path / "adapter").exists() and not (tmp_path / "checkpoints").exists()

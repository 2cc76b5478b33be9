"""Checkpoints that are written in the background: their content, their errors, and too little host memory."""

import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from training.checkpointing import checkpointer as checkpointer_module
from training.checkpointing import deferred_writes
from training.checkpointing.checkpointer import Checkpointer
from training.checkpointing.deferred_writes import DeferredWrites
from training.config.run_config import RunConfig
from training.errors import UserError
from training.reports.report import Report
from training.run_folder import checkpoints
from training.run_folder.events import CheckpointSaved, Event, Note, decode
from training.run_folder.paths import checkpoint_dir

pytestmark = pytest.mark.slow  # imports torch


@pytest.fixture
def checkpointer(tmp_path: Path) -> Checkpointer:
    config = RunConfig(model="any", data="any", save_total_limit=1)
    return Checkpointer(tmp_path, config, Report(tmp_path, rank=0))


def reported(run_dir: Path) -> list[Event]:
    return [event for line in (run_dir / "events.jsonl").read_bytes().splitlines() if (event := decode(line))]


def saves(run_dir: Path, step: int, state: object) -> None:
    checkpoint_dir(run_dir, step).mkdir(parents=True)
    torch.save(state, checkpoint_dir(run_dir, step) / "optimizer.pt")


def test_a_checkpoint_has_the_state_of_its_step(tmp_path: Path, checkpointer: Checkpointer) -> None:
    weights = torch.zeros(1000)
    for step in (1, 2):
        weights.fill_(step)
        checkpointer.save(step, None, lambda step=step: saves(tmp_path, step, {"weights": weights, "step": step}))
        weights.fill_(-1)
    checkpointer.wait()
    assert [path.name for path in checkpoints.sealed(tmp_path)] == ["checkpoint-2"]
    assert checkpoints.fault(checkpoint_dir(tmp_path, 2)) == ""
    saved = torch.load(checkpoint_dir(tmp_path, 2) / "optimizer.pt")
    assert saved["step"] == 2 and saved["weights"].tolist() == [2.0] * 1000
    events = [event for event in reported(tmp_path) if isinstance(event, CheckpointSaved)]
    assert [event.step for event in events] == [1, 2]
    assert all((event.stall_seconds or 0) > 0 and event.write_seconds > 0 for event in events)


def test_reserved_memory_is_used_by_the_first_checkpoint_and_does_not_count_as_missing(
    tmp_path: Path, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, moments = torch.zeros(2**18), torch.zeros(2**18)
    copies = checkpointer._deferred._copies
    checkpointer.prepare([weights, moments])
    monkeypatch.setattr(deferred_writes, "free_bytes", lambda: deferred_writes._KEPT_FREE)  # none are left
    for step in (1, 2):
        weights.fill_(step)
        checkpointer.save(step, None, lambda step=step: saves(tmp_path, step, {"w": weights, "m": moments}))
        weights.fill_(-1)
    checkpointer.wait()
    assert torch.load(checkpoint_dir(tmp_path, 2) / "optimizer.pt")["w"].unique().tolist() == [2.0]
    assert not [event for event in reported(tmp_path) if isinstance(event, Note)]
    assert copies.shortage("another", weights) == "a copy needs 1.0 MiB of host memory, but 0 bytes are free"


def test_the_libraries_write_nothing_while_training_waits(tmp_path: Path) -> None:
    sizes = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with DeferredWrites(pytest.fail).taking() as writes:
        model.save_pretrained(tmp_path)
        torch.save({"rng": torch.get_rng_state()}, tmp_path / "rng.pth")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for write in writes:
        write()
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], before[name]) for name in saved) and len(saved) == len(before)
    assert (tmp_path / "rng.pth").exists()


def test_an_error_of_the_writer_ends_the_next_step(tmp_path: Path, checkpointer: Checkpointer) -> None:
    def into_a_folder() -> None:
        (checkpoint_dir(tmp_path, 1) / "optimizer.pt").mkdir(parents=True)
        torch.save({"weights": torch.zeros(10)}, checkpoint_dir(tmp_path, 1) / "optimizer.pt")

    checkpointer.save(1, None, into_a_folder)
    checkpointer.wait_after_error()
    with pytest.raises(Exception, match="directory"):
        checkpointer.check()
    assert checkpoints.sealed(tmp_path) == []


def test_a_checkpoint_that_fails_its_check_does_not_count_and_the_earlier_one_is_kept(
    tmp_path: Path, checkpointer: Checkpointer
) -> None:
    def refused(folder: Path) -> None:
        raise UserError("checkpoint", folder.name, "lacks a parameter.")

    checkpointer.save(1, None, lambda: saves(tmp_path, 1, {"weights": torch.zeros(10)}))
    checkpointer.save(2, None, lambda: saves(tmp_path, 2, {"weights": torch.zeros(10)}), refused)
    checkpointer.wait_after_error()
    with pytest.raises(UserError, match=r"checkpoint-2.*lacks a parameter"):
        checkpointer.check()
    assert [path.name for path in checkpoints.sealed(tmp_path)] == ["checkpoint-1"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
@pytest.mark.parametrize(("niceness", "expected"), [(0, 5), (10, 15), (19, 19)])
def test_the_writer_only_ever_lowers_its_priority_also_without_root(niceness: int, expected: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.nice(niceness - os.nice(0))
            if os.getuid() == 0:
                os.setuid(12345)
            checkpointer_module._lower_priority()
            os._exit(os.getpriority(os.PRIO_PROCESS, 0))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == expected


def test_without_host_memory_for_a_copy_files_are_written_at_once(
    tmp_path: Path, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred_writes, "free_bytes", lambda: 0)
    checkpointer.save(1, None, lambda: saves(tmp_path, 1, {"weights": torch.zeros(2**18)}))
    checkpointer.wait()
    assert checkpoints.fault(checkpoint_dir(tmp_path, 1)) == ""
    (note,) = [event.message for event in reported(tmp_path) if isinstance(event, Note)]
    assert note == (
        "optimizer.pt is written while training waits: a copy needs 1.0 MiB of host memory, but 0 bytes are free."
    )

"""The probe tests the largest batch before the first step, and does not change any bit of the run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from trained import LONG_ROW, resumable, trained
from trainer_process import train_here

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast.step_down import next_rung_after
from training.rules import check
from training.rules.memory import wants_probe
from training.run_folder.events import Metrics, Note, OutOfMemory, PhaseStarted, decode
from training.run_folder.memory_words import summary
from training.tokens.order import Shuffled


def events(folder: Path, kind: type[Any]) -> list[Any]:
    with (folder / "events.jsonl").open("rb") as lines:
        return [event for line in lines if isinstance(event := decode(line), kind)]


def numbers_and_weights(folder: Path) -> tuple[dict[int, tuple[Any, ...]], dict[str, torch.Tensor]]:
    """Returns loss, gradient norm and learning rate of each step, and the weights of the result."""
    numbers = {
        event.step: tuple(event.values[name] for name in ("loss", "grad_norm", "learning_rate"))
        for event in events(folder, Metrics)
        if "loss" in event.values
    }
    (weights,) = [*folder.glob("adapter/*.safetensors"), *folder.glob("model/*.safetensors")]
    return numbers, load_file(weights)


def assert_same(first: Path, other: Path) -> None:
    (numbers, weights), (others, other_weights) = numbers_and_weights(first), numbers_and_weights(other)
    assert list(numbers) == [1, 2, 3, 4] and numbers == others
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def probed(folder: Path) -> bool:
    return any(event.phase == "probing" for event in events(folder, PhaseStarted))


@pytest.mark.train
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "full"},
        {"method": "lora", "precision": "bf16", "packing": "none"},
        {"method": "full", "optimizer": "adamw_torchao_8bit", "packing": "packed"},
    ],
    ids=lambda settings: " ".join(str(value) for value in settings.values()),
)
def test_the_probe_does_not_change_losses_and_weights(tmp_path: Path, settings: dict[str, Any]) -> None:
    recipe = resumable("single", **settings)
    with torch.compiler.set_stance("force_eager"):  # torchao compiles its step, which takes half a minute
        off = trained(recipe).run_dir
        recipe.train(tmp_path, probe="on")
    assert_same(off, tmp_path)
    assert (probed(off), probed(tmp_path)) == (False, True)
    (note,) = [note.message for note in events(tmp_path, Note) if "largest batch" in note.message]
    assert "2 rows of up to 408 tokens" in note or settings.get("packing") == "packed"


@pytest.mark.train
@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        ("ddp", "lora"), ("zero3", "full"), ("fsdp", "full"),
        pytest.param("zero2", "full", marks=pytest.mark.nightly), pytest.param("zero3", "lora", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_the_probe_does_not_change_losses_and_weights_on_two_ranks(tmp_path: Path, strategy: str, method: str) -> None:
    recipe = resumable(strategy, method)
    recipe.train(tmp_path, probe="on")
    assert_same(trained(recipe).run_dir, tmp_path)
    assert probed(tmp_path)


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["zero1", pytest.param("zero2", marks=pytest.mark.nightly)])
def test_the_probe_leaves_no_optimizer_state_behind(tmp_path: Path, strategy: str) -> None:
    """When training begins, no state is there yet, with and without a probe."""
    recipe, allocated = resumable(strategy, "full"), {}
    for probe in ("off", "on"):
        recipe.train(tmp_path / probe, probe=probe, memory_limit=4096)
        memory = [event.values["memory_allocated"] for event in events(tmp_path / probe, Metrics) if event.rank == 0
                  and event.step == 0 and "memory_allocated" in event.values]  # fmt: skip
        allocated[probe] = memory[-1]
    assert allocated["on"] == pytest.approx(allocated["off"], rel=0.01)


@pytest.mark.train
@pytest.mark.parametrize("place", [0, 7])
def test_the_probe_takes_the_memory_of_the_run(tmp_path: Path, place: int) -> None:
    """A largest batch in the first step, in which the optimizer has no state yet, takes less than in the last one."""
    model, long, peaks = make_model(tmp_path / "model"), int(Shuffled(8, 0).epoch(0)[place]), {}
    lines = [json.dumps({"prompt": "a", "completion": "b" * (300 if row == long else 20)}) for row in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
    settings = {
        "method": "full",
        "packing": "none",
        "micro_batch_size": 1,
        "max_steps": 8,
        "eval_split": 0,
        "eval_steps": 0,
    }
    for probe in ("off", "on"):
        settings |= {"probe": probe, "memory_limit": 4096, "seed": 0, "answer_rows": 0}
        run = train_here(tmp_path / probe, model, tmp_path / "rows.jsonl", **settings)
        (peaks[probe],) = run.summary["memory"]["peak_bytes"]
    assert peaks["on"] == pytest.approx(peaks["off"], rel=0.01)


@pytest.mark.train
def test_the_probe_finds_a_batch_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        resumable("single", "full").train(tmp_path, packing="none", memory_limit=8, probe="on")
    (report,) = events(tmp_path, OutOfMemory)
    assert LONG_ROW + 1 in report.batches[0]["rows"]
    ran_with = RunConfig.model_validate_json((tmp_path / "config.json").read_text())
    rung = next_rung_after(report, ran_with, Machine(), has_checkpoint=False)
    assert rung == {"micro_batch_size": 1, "gradient_accumulation_steps": 4}
    assert "in the forward pass of the probe, which runs the largest batch" in summary(report)
    assert not [event for event in events(tmp_path, Metrics) if "loss" in event.values]


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def test_the_probe_runs_on_a_gpu_unless_it_is_off() -> None:
    assert wants_probe(config(), "cuda") and not wants_probe(config(), "cpu")
    assert wants_probe(config(probe="on"), "cpu") and not wants_probe(config(probe="off"), "cuda")


def test_if_the_probe_is_impossible_auto_skips_it_and_on_is_refused() -> None:
    streaming = {"streaming": True, "data": "d.jsonl"}
    assert not wants_probe(config(**streaming), "cuda")
    conflicts = check(config(probe="on", **streaming), Machine())
    assert any(conflict.blocking and "probe" in conflict.settings for conflict in conflicts)

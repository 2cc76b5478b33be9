"""The probe tests the largest batch before the first step, and does not change any bit of the run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from trainer_process import start, train_here

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules import check
from training.rules.probe import wants_probe
from training.run_folder.events import Metrics, Note, OutOfMemory, PhaseStarted, decode
from worker.store.memory_words import summary
from worker.supervision.outcome import next_rung_after

LONG_ROW = 9
SETTINGS: dict[str, Any] = {
    "max_steps": 4,
    "eval_split": 0,
    "eval_steps": 0,
    "save_steps": 0,
    "logging_steps": 1,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_length": 480,
    "lora_dropout": 0.1,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "precision": "fp32",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model with dropout, and rows with one that is much longer than the others."""
    folder = tmp_path_factory.mktemp("inputs")
    model = make_model(folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.1}))
    rows = [{"prompt": f"row {row}: ", "completion": "abc" * (1 + row % 5)} for row in range(16)]
    rows[LONG_ROW]["completion"] = "x" * 400
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return {"model": str(model), "data": str(folder / "rows.jsonl")}


def events(folder: Path, kind: type[Any]) -> list[Any]:
    with (folder / "events.jsonl").open("rb") as lines:
        return [event for line in lines if isinstance(event := decode(line), kind)]


def trained(folder: Path) -> tuple[dict[int, tuple[Any, ...]], dict[str, torch.Tensor]]:
    """Returns loss, gradient norm and learning rate of each step, and the weights of the result."""
    numbers = {
        event.step: tuple(event.values[name] for name in ("loss", "grad_norm", "learning_rate"))
        for event in events(folder, Metrics)
        if "loss" in event.values
    }
    (weights,) = [*folder.glob("adapter/*.safetensors"), *folder.glob("model/*.safetensors")]
    return numbers, load_file(weights)


def assert_same(first: Path, other: Path) -> None:
    (numbers, weights), (others, other_weights) = trained(first), trained(other)
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
def test_the_probe_does_not_change_losses_and_weights(
    tmp_path: Path, inputs: dict[str, str], settings: dict[str, Any]
) -> None:
    files = Path(inputs["model"]), Path(inputs["data"])
    with torch.compiler.set_stance("force_eager"):  # torchao compiles its step, which takes half a minute
        for probe in ("off", "on"):
            train_here(tmp_path / probe, *files, **SETTINGS | settings | {"probe": probe})
    assert_same(tmp_path / "off", tmp_path / "on")
    assert (probed(tmp_path / "off"), probed(tmp_path / "on")) == (False, True)
    (note,) = [note.message for note in events(tmp_path / "on", Note) if "largest batch" in note.message]
    assert "2 rows of up to 408 tokens" in note or settings.get("packing") == "packed"


@pytest.mark.train
@pytest.mark.parametrize(
    ("strategy", "method"), [("ddp", "lora"), ("zero2", "full"), ("zero3", "full"), ("zero3", "lora"), ("fsdp", "full")]
)
def test_the_probe_does_not_change_losses_and_weights_on_two_ranks(
    tmp_path: Path, inputs: dict[str, str], strategy: str, method: str
) -> None:
    settings = SETTINGS | {"strategy": strategy, "num_processes": 2, "method": method}
    for probe in ("off", "on"):
        run = start(tmp_path / probe, Path(inputs["model"]), Path(inputs["data"]), **settings, probe=probe)
        assert run.finish() == 0, run.log()
    assert_same(tmp_path / "off", tmp_path / "on")
    assert probed(tmp_path / "on")


@pytest.mark.train
def test_the_probe_finds_a_batch_that_does_not_fit(tmp_path: Path, inputs: dict[str, str]) -> None:
    files = Path(inputs["model"]), Path(inputs["data"])
    settings = {"method": "full", "packing": "none", "memory_limit": 8, "probe": "on"}
    with pytest.raises(torch.OutOfMemoryError):
        train_here(tmp_path, *files, **SETTINGS | settings)
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

"""The probe before the first step tries the largest batch, and leaves the run as it would have been, bit for bit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from trainer_process import train_here

from benchmarks.matrix import Cell, Ranks
from training.config import RunConfig
from training.events import Metrics, Note, OutOfMemory, PhaseStarted, decode
from training.probe_rules import wants_probe
from training.rules import Machine, check
from worker.memory_words import summary

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
    """A model with dropout, and rows of which one is far longer than the others."""
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
    """Loss, gradient norm and learning rate of each step, and the weights of the result."""
    numbers = {
        event.step: tuple(event.values[name] for name in ("loss", "grad_norm", "learning_rate"))
        for event in events(folder, Metrics)
        if "loss" in event.values
    }
    (weights,) = [*folder.glob("adapter/*.safetensors"), *folder.glob("model/*.safetensors")]
    return numbers, load_file(weights)


def assert_same(one: Path, other: Path) -> None:
    (numbers, weights), (others, other_weights) = trained(one), trained(other)
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
def test_losses_and_weights_are_the_same_with_a_probe_and_without(
    tmp_path: Path, inputs: dict[str, str], settings: dict[str, Any]
) -> None:
    files = Path(inputs["model"]), Path(inputs["data"])
    for probe in ("off", "on"):
        train_here(tmp_path / probe, *files, **SETTINGS | settings | {"probe": probe})
    assert_same(tmp_path / "off", tmp_path / "on")
    assert (probed(tmp_path / "off"), probed(tmp_path / "on")) == (False, True)
    (note,) = [note.message for note in events(tmp_path / "on", Note) if "largest batch" in note.message]
    assert "2 rows, the longest of 408 tokens" in note or settings.get("packing") == "packed"


@pytest.fixture(scope="module", params=["ddp", "zero2", "zero3", "fsdp"])
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, str]
) -> Iterator[Any]:
    cell = Cell("sft", "full", request.param, "fp32")
    cell.config = SETTINGS | inputs | {"strategy": request.param, "num_processes": cell.ranks}
    running = Ranks(cell, tmp_path_factory.mktemp("ranks") / "log")

    def train(folder: Path, **settings: Any) -> None:
        wanted = Cell("sft", "full", request.param, "fp32", config=cell.config | settings)
        assert running.run(wanted, folder) == ("worked", "")

    yield train
    running.end()


@pytest.mark.train
@pytest.mark.parametrize("method", ["full", "lora"])
def test_so_they_are_on_two_ranks_whatever_is_sharded(tmp_path: Path, ranks: Any, method: str) -> None:
    for probe in ("off", "on"):
        ranks(tmp_path / probe, probe=probe, method=method)
    assert_same(tmp_path / "off", tmp_path / "on")
    assert probed(tmp_path / "on")


@pytest.mark.train
def test_what_does_not_fit_is_known_before_the_first_step_with_its_rows_and_the_way_down(
    tmp_path: Path, inputs: dict[str, str]
) -> None:
    files = Path(inputs["model"]), Path(inputs["data"])
    settings = {"method": "full", "packing": "none", "memory_limit": 8, "probe": "on"}
    with pytest.raises(torch.OutOfMemoryError):
        train_here(tmp_path, *files, **SETTINGS | settings)
    (told,) = events(tmp_path, OutOfMemory)
    assert LONG_ROW + 1 in told.batches[0]["rows"]
    assert told.step_down == {"micro_batch_size": 1, "gradient_accumulation_steps": 4}
    assert "in the forward pass of the probe, which tries the largest batch of the run" in summary(told)
    assert not [event for event in events(tmp_path, Metrics) if "loss" in event.values]


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def test_a_probe_is_taken_on_a_gpu_unless_it_is_turned_off() -> None:
    assert wants_probe(config(), "cuda") and not wants_probe(config(), "cpu")
    assert wants_probe(config(probe="on"), "cpu") and not wants_probe(config(probe="off"), "cuda")


def test_where_it_cannot_leave_the_run_as_it_was_it_is_left_out_and_refused_when_asked_for() -> None:
    streaming = {"streaming": True, "data": "d.jsonl"}
    assert not wants_probe(config(**streaming), "cuda")
    conflicts = check(config(probe="on", **streaming), Machine())
    assert any(conflict.blocking and "probe" in conflict.settings for conflict in conflicts)

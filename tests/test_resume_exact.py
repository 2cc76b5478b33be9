"""A run that goes on from a checkpoint takes the very steps that it would have taken: rows, learning rate, dropout and weights."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model

from benchmarks.matrix import Cell, Ranks
from training.events import Metrics, Resumed, decode

pytestmark = pytest.mark.train
SETTINGS: dict[str, Any] = {
    "max_steps": 8,
    "save_steps": 4,
    "eval_steps": 0,
    "eval_split": 8,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "lora_dropout": 0.1,
    "lr_scheduler": "cosine",
    "learning_rate": 1e-2,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model with dropout, and so few rows that the steps pass from one epoch to the next."""
    folder = tmp_path_factory.mktemp("inputs")
    model = make_model(folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.1}))
    return {"model": str(model), "data": str(make_data(folder / "data.jsonl", rows=30))}


@pytest.fixture(scope="module", params=["single", "ddp", "zero2", "zero3"])
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, str]
) -> Iterator[Any]:
    cell = Cell("sft", "lora", request.param, "fp32")
    cell.config = SETTINGS | inputs | {"strategy": request.param, "num_processes": cell.ranks, "precision": "fp32"}
    running = Ranks(cell, tmp_path_factory.mktemp("ranks") / "log")

    def train(folder: Path, **settings: Any) -> dict[int, float]:
        """The losses by step of a run in `folder`, of which a line in its reports is forgotten for the next."""
        wanted = Cell("sft", "", request.param, "fp32", config=cell.config | settings)
        assert running.run(wanted, folder) == ("worked", "")
        return losses(folder)

    yield train
    running.end()


def losses(folder: Path) -> dict[int, float]:
    with (folder / "events.jsonl").open("rb") as lines:
        events = [decode(line) for line in lines]
    return {
        event.step: float(event.values["loss"] or 0)
        for event in events
        if isinstance(event, Metrics) and "loss" in event.values
    }


@pytest.mark.parametrize(
    "settings", [{"method": "lora"}, {"method": "full"}, {"method": "lora", "packing": "packed"}], ids=str
)
def test_the_steps_after_a_checkpoint_are_those_of_the_run_that_never_ended(
    tmp_path: Path, ranks: Any, settings: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    whole = ranks(folder, **settings)
    assert list(whole) == list(range(1, 9))
    shutil.rmtree(folder / "checkpoints" / "checkpoint-8")
    (folder / "events.jsonl").rename(tmp_path / "before.jsonl")
    again = ranks(folder, **settings)
    with (folder / "events.jsonl").open("rb") as lines:
        assert [event.step for line in lines if isinstance(event := decode(line), Resumed)] == [4]
    assert again == pytest.approx({step: loss for step, loss in whole.items() if step > 4}, rel=1e-6)

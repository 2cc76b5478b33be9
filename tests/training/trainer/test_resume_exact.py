"""A resumed run takes exactly the same steps: rows, learning rate, dropout and weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model
from trainer_process import start

from training.run_folder.events import Metrics, Resumed, decode

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
    """A model with dropout, and few enough rows for several epochs."""
    folder = tmp_path_factory.mktemp("inputs")
    model = make_model(folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.1}))
    return {"model": str(model), "data": str(make_data(folder / "data.jsonl", rows=30))}


def train(folder: Path, inputs: dict[str, str], settings: dict[str, Any]) -> dict[int, float]:
    """Trains in `folder`. Returns the losses by step."""
    run = start(folder, Path(inputs["model"]), Path(inputs["data"]), **settings)
    assert run.finish() == 0, run.log()
    return losses(folder)


def losses(folder: Path) -> dict[int, float]:
    with (folder / "events.jsonl").open("rb") as lines:
        events = [decode(line) for line in lines]
    return {
        event.step: float(event.values["loss"] or 0)
        for event in events
        if isinstance(event, Metrics) and "loss" in event.values
    }


LORA, FULL, PACKED = {"method": "lora"}, {"method": "full"}, {"method": "lora", "packing": "packed"}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("single", LORA), ("single", FULL), ("single", PACKED), ("ddp", LORA), ("zero2", FULL),
        ("zero3", LORA), ("zero3", FULL), ("zero3", PACKED),
    ],
    ids=str,
)  # fmt: skip
def test_a_resumed_run_takes_exactly_the_same_steps(
    tmp_path: Path, inputs: dict[str, str], strategy: str, settings: dict[str, Any]
) -> None:
    ranks = {"strategy": strategy, "num_processes": 1 if strategy == "single" else 2, "precision": "fp32"}
    folder = tmp_path / "run"
    whole = train(folder, inputs, SETTINGS | ranks | settings)
    assert list(whole) == list(range(1, 9))
    shutil.rmtree(folder / "checkpoints" / "checkpoint-8")
    (folder / "events.jsonl").rename(tmp_path / "before.jsonl")
    again = train(folder, inputs, SETTINGS | ranks | settings)
    with (folder / "events.jsonl").open("rb") as lines:
        assert [event.step for line in lines if isinstance(event := decode(line), Resumed)] == [4]
    assert again == pytest.approx({step: loss for step, loss in whole.items() if step > 4}, rel=1e-6)

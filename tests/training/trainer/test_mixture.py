"""Runs on several data sets: the losses of each set, any number of ranks, resume."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_model
from torch.nn.functional import cross_entropy
from trainer_process import Trained, start, train_here
from transformers import AutoModelForCausalLM

from benchmarks.matrix import inputs as matrix
from training.batches.layout import LOSSES_BY_SET
from training.chat.tokenizer import load
from training.config.run_config import RunConfig
from training.config.task import Task
from training.reports.report import Report
from training.run_folder.events import Note, Planned, Resumed
from training.trainer.prepare import prepare_data

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default::FutureWarning")]
COUNTS = {"short": 40, "long": 12, "chat": 9}
WEIGHTS = {"short": 2, "long": 1, "chat": 1}
SETTINGS: dict[str, Any] = {
    "max_steps": 8,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "eval_steps": 4,
    "save_steps": 4,
    "precision": "fp32",
    "lr_scheduler": "cosine",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Three sets in three formats; the second repeats a row of the first."""
    folder = tmp_path_factory.mktemp("data")
    rows: dict[str, list[dict[str, Any]]] = {
        "short": [{"prompt": f"{n}?", "completion": f"{n}"} for n in range(COUNTS["short"])],
        "long": [{"instruction": f"say {n}", "output": f"{n} and on " * 6} for n in range(COUNTS["long"])],
        "chat": [
            {"messages": [{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": f"you {n}"}]}
            for n in range(COUNTS["chat"])
        ],
    }
    for name, made in rows.items():
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in made))
    return [{"path": str(folder / f"{name}.jsonl"), "name": name, "weight": WEIGHTS[name]} for name in rows]


def train(folder: Path, model: Path, data: Any, **settings: Any) -> Trained:
    return train_here(folder, model, json.dumps(data), **SETTINGS | settings)


def by_set(run: Trained, prefix: str = "") -> dict[str, dict[int, float]]:
    return {name: run.series(f"{prefix}loss/{name}") for name in COUNTS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path, data: Any) -> Trained:
    return train(tmp_path_factory.mktemp("whole") / "run", model, data)


@pytest.mark.parametrize("packing", ["none", "padding_free", "packed"])
def test_the_evaluation_losses_equal_a_plain_loop(
    tmp_path: Path, model: Path, data: Any, whole: Trained, packing: str
) -> None:
    """The held-out rows of each set before training, which a plain model computes row by row."""
    run = train(tmp_path / "run", model, data, packing=packing, max_steps=1, learning_rate=1e-12)
    (plan,) = run.of(Planned)
    assert [one["rows"] for one in plan.eval_sets] == [5, 2, 1]
    held_out = {name: losses[1] for name, losses in by_set(run, "eval_").items()}
    overall = run.evaluations()[1]
    assert min(held_out.values()) <= overall <= max(held_out.values())
    if packing != "packed":  # which has other rows in a step
        first = {name: losses.get(1) for name, losses in by_set(whole).items()}
        assert {name: losses.get(1) for name, losses in by_set(run).items()} == pytest.approx(first, rel=1e-4)
    expected = _plain_losses(run, model)
    assert held_out == pytest.approx({name: losses.mean() for name, losses in expected.items()}, rel=1e-4)
    assert overall == pytest.approx(np.concatenate(list(expected.values())).mean(), rel=1e-4)


def _plain_losses(run: Trained, model: Path) -> dict[str, Any]:
    """The losses of all held-out tokens by set, computed row by row with the plain model."""
    config = RunConfig.model_validate_json((run.run_dir / "config.json").read_text())
    prepared = prepare_data(config, run.run_dir, load(config.model), Report(run.run_dir, rank=1))
    assert prepared.held_out is not None
    plain = AutoModelForCausalLM.from_pretrained(model).eval()
    found: dict[str, list[Any]] = {name: [] for name in COUNTS}
    for index, number in enumerate(prepared.held_out.rows):
        row = {name: torch.as_tensor(values).long() for name, values in prepared.held_out[index].items()}
        with torch.no_grad():
            logits = plain(input_ids=row["input_ids"][None]).logits[0, :-1]
        losses = cross_entropy(logits, row["labels"][1:], reduction="none", ignore_index=-100)
        file = prepared.held_out_files.files[prepared.held_out_files.place(int(number))[0]]
        found[file.name].append(losses[row["labels"][1:] != -100])
    return {name: torch.cat(losses).numpy() for name, losses in found.items()}


def test_the_losses_of_the_sets_average_to_the_loss(whole: Trained) -> None:
    """Each step's loss is a mean over tokens, so it lies between the losses of the sets in it."""
    for step, loss in whole.losses().items():
        mine = [losses[step] for losses in by_set(whole).values() if step in losses]
        assert min(mine) - 1e-5 <= loss <= max(mine) + 1e-5
    assert {step for losses in by_set(whole).values() for step in losses} == set(range(1, 9))
    assert all(list(losses) == [4, 8] for losses in by_set(whole, "eval_").values())


def test_the_plan_has_the_shares(whole: Trained) -> None:
    (plan,) = whole.of(Planned)
    rows = {one["name"]: (one["rows"], one["epoch_rows"]) for one in plan.sets}
    assert rows == {"short": (35, 16), "long": (10, 8), "chat": (8, 8)}
    assert sum(one["rows"] for one in plan.sets) == plan.train_rows


def test_two_ranks_take_the_same_steps(tmp_path: Path, model: Path, data: Any, whole: Trained) -> None:
    ranks = {"strategy": "ddp", "num_processes": 2, "gradient_accumulation_steps": 1}
    run = start(tmp_path / "run", model, json.dumps(data), **SETTINGS | ranks)
    assert run.finish() == 0, run.log()
    for prefix in ("", "eval_"):
        for name, losses in by_set(whole, prefix).items():
            assert run.series(f"{prefix}loss/{name}") == pytest.approx(losses, rel=1e-4)


def test_a_resumed_run_continues_the_mixture(tmp_path: Path, model: Path, data: Any, whole: Trained) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole.run_dir, folder)
    shutil.rmtree(folder / "checkpoints" / "checkpoint-8")
    (folder / "events.jsonl").unlink()
    again = train(folder, model, data)
    assert [event.step for event in again.of(Resumed)] == [4]
    for name, losses in by_set(whole).items():
        assert again.series(f"loss/{name}") == pytest.approx({s: loss for s, loss in losses.items() if s > 4}, rel=1e-6)


def test_repeated_rows_are_named(tmp_path: Path, model: Path, data: Any) -> None:
    first = Path(data[0]["path"]).read_text().splitlines()
    (tmp_path / "more.jsonl").write_text("\n".join([*first[:7], '{"prompt": "new", "completion": "row"}']))
    sets = [data[0], {"path": str(tmp_path / "more.jsonl"), "name": "more", "weight": 1}]
    run = train(tmp_path / "run", model, sets, max_steps=1, eval_split=0)
    notes = [event.message for event in run.of(Note)]
    assert "7 training rows of more are also in short." in notes


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Path], dict[Task, Path]]:
    folder = tmp_path_factory.mktemp("tasks")
    return matrix.make_models(folder), matrix.make_data(folder)


@pytest.mark.parametrize("task", list(Task))
def test_every_task_evaluates_each_set(tmp_path: Path, tasks: Any, task: Task) -> None:
    models, files = tasks
    lines = files[task].read_text().splitlines()
    for name, part in (("even", lines[::2]), ("odd", lines[1::2])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(part))
    sets = [
        {"path": str(tmp_path / "even.jsonl"), "name": "even", "weight": 3},
        {"path": str(tmp_path / "odd.jsonl"), "name": "odd"},
    ]
    samples = (
        {"rewards": "contains", "num_generations": 2, "max_completion_length": 4, "baseline_prompts": 0}
        if task.traits.samples
        else {}
    )
    samples |= {"teacher": str(models[False])} if task is Task.DISTILL else {}
    settings = {"task": task.value, "max_steps": 2, "eval_steps": 2, "save_steps": 0} | samples
    run = train(tmp_path / "run", models[task is Task.SEQ2SEQ], sets, **settings)
    held_out = [run.series(f"eval_loss/{name}")[2] for name in ("even", "odd")]
    if task is not Task.KTO:  # its loss also depends on the other rows of a batch
        assert min(held_out) - 1e-6 <= run.evaluations()[2] <= max(held_out) + 1e-6
    assert bool(run.series("loss/even")) == (task in LOSSES_BY_SET)

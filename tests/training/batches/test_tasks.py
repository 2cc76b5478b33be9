"""Every task trains with LoRA and full fine-tuning, and its result loads as a model of the task."""

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
from trained import model, trained
from trainer_process import Trained, train_here

from benchmarks.matrix.inputs import make_data
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import DataError
from training.models.loading import model_class
from training.rules import check
from training.tokens.parts import misfit, tasks_of

# peft and trl ask transformers for what it is about to rename.
pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default::FutureWarning")]
ALL = [
    task.value for task in Task if not task.traits.samples
]  # those that sample: tests/training/trainer/test_policy_objective.py
HELD = ["dpo", "kto"]  # to the model they start from


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def models() -> tuple[Path, Path]:
    return model("plain_llama"), model("t5")


@pytest.fixture(scope="module")
def data(home: Path) -> dict[Task, Path]:
    return make_data(home)


def of_task(task: str, method: str) -> Trained:
    """A run of ten steps of a task with a method."""
    return trained(f"task_{task}_{method}")


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("task", ALL)
def test_every_task_learns(task: str, method: str) -> None:
    ran = of_task(task, method)
    losses = ran.series("loss")
    assert len(losses) == 10
    if task == "kto":  # its loss stays near 0.5
        assert ran.series("eval_margin")[10] > 0
    else:
        assert min(list(losses.values())[-3:]) < losses[1]
    assert ran.series("eval_loss")[10] == ran.summary["eval_loss"]


@pytest.mark.parametrize("task", ALL)
def test_the_result_loads_as_a_model_of_its_task(models: Any, task: str) -> None:
    from peft import PeftModel

    adapter = of_task(task, "lora").run_dir / "adapter"
    outputs = {"reward": {"num_labels": 1}, "classification": {"num_labels": 2}}.get(task, {})
    base = model_class(Task(task)).from_pretrained(models[1] if task == "seq2seq" else models[0], **outputs)
    tuned = PeftModel.from_pretrained(base, str(adapter))
    assert set(tuned.peft_config) == {"default"}
    assert not [path.name for path in adapter.iterdir() if path.is_dir()]
    whole = model_class(Task(task)).from_pretrained(of_task(task, "full").run_dir / "model")
    assert type(whole).__name__ == type(base).__name__


def test_the_reference_adapter_is_not_part_of_the_result(tmp_path: Path, models: Any, data: Any) -> None:
    ran = train_here(tmp_path / "run", models[0], data[Task.DPO], task="dpo", lora_init="orthogonal", max_steps=2)
    assert ran.losses()[1] == pytest.approx(log(2), abs=1e-5)
    assert not [path.name for path in (ran.run_dir / "adapter").iterdir() if path.is_dir()]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_dpo_begins_where_the_model_equals_its_reference(method: str) -> None:
    assert of_task("dpo", method).series("loss")[1] == pytest.approx(log(2), abs=1e-5)
    assert of_task("dpo", method).series("eval_accuracy")[10] == 1.0


@pytest.mark.parametrize("method", ["lora", "full"])
def test_kto_begins_where_the_model_equals_its_reference(method: str) -> None:
    assert of_task("kto", method).series("loss")[1] == pytest.approx(0.5, abs=1e-5)
    assert of_task("kto", method).series("kl")[1] == 0


def test_a_classifier_keeps_the_names_of_its_classes_and_says_how_accurate_it_is() -> None:
    ran = of_task("classification", "full")
    saved = json.loads((ran.run_dir / "model" / "config.json").read_text())
    assert saved["id2label"] == {"0": "even", "1": "odd"}
    assert 0 <= ran.series("eval_accuracy")[10] <= 1


def test_a_reference_model_is_not_counted_as_parameters() -> None:
    sft, dpo = (of_task(task, "lora").summary for task in ("sft", "dpo"))
    assert dpo["trainable_parameters"] == sft["trainable_parameters"]
    assert dpo["total_parameters"] == sft["total_parameters"]


def test_a_classifier_s_validation_data_with_a_new_class_is_refused_by_its_row(
    tmp_path: Path, models: Any, data: Any
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "number 1", "label": "odd"}\n{"text": "number 0", "label": "zero"}\n')
    settings = {"task": "classification", "validation_data": str(other)}
    with pytest.raises(DataError, match=r"row 2, label: has the class 'zero'"):
        train_here(tmp_path / "run", models[0], data[Task.CLASSIFICATION], **settings)


@pytest.mark.parametrize(("task", "lacks"), [("dpo", "no rejected answer"), ("kto", "no label")])
def test_data_of_another_task_is_refused_by_its_first_row(
    tmp_path: Path, models: Any, data: Any, task: str, lacks: str
) -> None:
    with pytest.raises(DataError, match=rf"row 1, \w+: has {lacks}"):
        train_here(tmp_path / "run", models[0], data[Task.SFT], task=task)


def test_a_format_says_which_tasks_it_can_train() -> None:
    assert misfit(Task.DPO, "preference") is None
    assert "chosen and rejected" in str(misfit(Task.DPO, "alpaca"))
    assert tasks_of("text") == [Task.SFT, Task.PRETRAINING]
    assert Task.CLASSIFICATION in tasks_of("text/label")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"task": "reward", "answer_rows": 3}, "answer_rows"),
        ({"task": "kto", "micro_batch_size": 1}, "micro_batch_size"),
        ({"task": "dpo", "streaming": True}, "streaming"),
    ],
)
def test_what_a_task_cannot_do_is_refused_with_a_fix(settings: dict[str, Any], named: str) -> None:
    config = RunConfig.model_validate({"model": "m", "data": "d"} | settings)
    (conflict,) = [item for item in check(config, Machine()) if item.blocking]
    assert conflict.settings[0] == named
    mended = RunConfig.model_validate({"model": "m", "data": "d"} | settings | conflict.changes)
    assert not [item for item in check(mended, Machine()) if item.blocking]


def test_a_setting_of_another_task_is_a_warning() -> None:
    config = RunConfig(model="m", data="d", task="dpo", desirable_weight=2)
    (conflict,) = check(config, Machine())
    assert not conflict.blocking and "kto" in conflict.fix

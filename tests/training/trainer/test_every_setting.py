"""Every setting has an effect: for each task and method to which it applies, two values change a number of the run, or the run says
why not.

`pytest -s -m "" tests/training/trainer/test_every_setting.py` tries all of them and prints the counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from trained import data, model
from trainer_process import Trained, train_here

from training.config.applies import applies
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import UserError
from training.rules import check
from training.run_folder.events import Metrics, Note, Planned

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]  # of the libraries

METHODS = ("lora", "full", "ia3")
BASE: dict[str, Any] = {
    "max_steps": 3, "warmup": 0, "precision": "fp32", "packing": "none", "eval_steps": 0, "eval_split": 4, "save_steps": 0,
    "learning_rate": 0.01, "verify_rows": 0, "lr_scheduler": "linear",
}  # fmt: skip
DRAWN = {"max_completion_length": 4, "baseline_prompts": 0}
# A reward that differs between samples: without it no setting of the training changes anything.
LENGTH = {"rewards": "length", "reward_code": "def length(p, a, e): return len(set(a))"}
SAMPLES = DRAWN | LENGTH | {"num_generations": 2}
MODULES = {"llama": {"target_modules": "q_proj", "modules_to_save": "embed_tokens"}}
MODULES["t5"] = {"target_modules": "q", "modules_to_save": "shared"}
# A rate that improves nothing; torch's scheduler ignores changes below 1e-8.
FLAT = {"lr_scheduler": "reduce_on_plateau", "eval_steps": 1, "learning_rate": 1e-7, "plateau_patience": 0}
CLIPPED = {"num_iterations": 3, "learning_rate": 0.1}


@dataclass(frozen=True)
class Try:
    """Another value of a setting than `among` others, with which it matters."""

    value: Any
    among: tuple[tuple[str, Any], ...] = ()


def to(value: Any, **among: Any) -> Try:
    return Try(value, tuple(among.items()))


TRIES: dict[str, Try] = {
    "eval_split": to(8), "data_slice": to("50%"), "max_samples": to(10), "max_length": to(8), "max_target_length": to(2),
    "streaming": to(True), "train_on_prompt": to(True), "rewards": to("contains"),
    "num_generations": to(4), "max_completion_length": to(2), "temperature": to(0.3), "baseline_prompts": to(4),
    "jsd_coefficient": to(0.3), "lora_r": to(4), "lora_alpha": to(64), "lora_dropout": to(0.5), "target_modules": to(None),
    "use_rslora": to(True), "use_dora": to(True), "lora_init": to("gaussian"), "loraplus_lr_ratio": to(16),
    "modules_to_save": to(None, trainable_layers=1), "trainable_layers": to(1), "precision": to("bf16"),
    "weights_precision": to("bf16"), "batch_order": to("by_length"), "optimizer": to("sgd"), "lr_scheduler": to("constant"),
    "learning_rate": to(0.02), "warmup": to(2), "epochs": to(0.5, max_steps=None, epochs=0.25), "max_steps": to(2),
    "micro_batch_size": to(2), "gradient_accumulation_steps": to(2), "min_lr_ratio": to(0.5, lr_scheduler="cosine_with_min_lr"),
    "decay_share": to(0.9, lr_scheduler="wsd"), "lr_cycles": to(2, lr_scheduler="cosine_with_restarts"),
    "plateau_patience": to(5, **FLAT), "plateau_factor": to(0.1, **FLAT), "weight_decay": to(0.5), "adam_beta1": to(0.5),
    "adam_beta2": to(0.5), "adam_epsilon": to(0.1), "momentum": to(0.5, optimizer="sgd"), "neftune_noise_alpha": to(10),
    "max_grad_norm": to(0.001, optimizer="sgd"), "seed": to(7), "beta": to(0.5), "dpo_loss": to("ipo"),
    "desirable_weight": to(2), "undesirable_weight": to(2), "num_iterations": to(3, **CLIPPED | {"num_iterations": 1}),
    "policy_loss": to("cispo", **CLIPPED), "importance_sampling_level": to("sequence", **CLIPPED),
    "scale_rewards": to("none", **CLIPPED), "clip_low": to(0.0, **CLIPPED), "clip_high": to(0.0, **CLIPPED),
    "kl_coefficient": to(0.5, **CLIPPED), "logging_steps": to(3), "eval_steps": to(1),
    "eval_strategy": to("epoch", max_steps=None, epochs=2, micro_batch_size=32), "eval_answers": to(2, eval_steps=1),
    "eval_metrics": to("rouge1", eval_steps=1, eval_answers=2), "eval_answers_every": to(2, eval_steps=1, eval_answers=2),
}  # fmt: skip

OTHERS = {
    "names and places": "name model revision task method engine slurm_options report_to report_project push_to_hub push_private "
    "vllm_url vllm_memory vllm_sleep generation nvme_path num_machines min_machines",
    "the same numbers, by other means": "strategy num_processes offload_optimizer offload_param zero_quantized_weights "
    "zero_quantized_gradients zero_hpz_partition_size zero_quantized_nontrainable_weights sequence_parallel_size tf32 "
    "deepspeed_config memory_limit gradient_checkpointing chunked_loss offload_activations optimizer_in_backward probe "
    "on_out_of_memory packing attention torch_compile",
    "what is kept of a run": "save_strategy save_steps save_total_limit async_save merge_adapter verify_rows "
    "answer_rows max_new_tokens",
    "need rows or models of their own, and have tests": "data columns validation_data stratify_by group_by "
    "exclude_leaked_rows mix_by mix_until chat_template "
    "chat_template_kwargs reasoning_history loss_on loss_field weight_field template_check reward_code teacher "
    "teacher_quantization method_options quantization double_quantization init_adapter",
    "act when something happens, and have tests": "stop_after_baseline on_divergence divergence_steps early_stopping_patience "
    "early_stopping_threshold load_best_at_end",
}
MEASURED = (
    "tokens_per_second",
    "samples_per_second",
    "host_rss",
    "generate_seconds",
    "score_seconds",
    "teacher_seconds",
    "checkpoint_stall",
)
"""Times and sizes that two equal runs do not share."""


def test_every_setting_is_tried_or_named_with_a_reason() -> None:
    named = [name for names in OTHERS.values() for name in names.split()]
    assert sorted([*TRIES, *named]) == sorted(RunConfig.model_fields)


def cells() -> Iterator[tuple[str, str, str]]:
    """Task, method and setting wherever the setting applies and no rule refuses the run."""
    for task in Task:
        for method in METHODS:
            for name, one in TRIES.items():
                if applies(name, settings_of(task, method, one, name)):
                    yield task.value, method, name


def settings_of(task: Task, method: str, one: Try, changed: str = "") -> dict[str, Any]:
    """The settings of a run; with `changed` that setting has its other value."""
    values: dict[str, Any] = {"model": "m", "data": "d"} | BASE | {"task": task.value, "method": method}
    if task.traits.samples:
        values |= SAMPLES if task is Task.GRPO else DRAWN | {"teacher": str(model("teacher"))}
    values |= dict(one.among)
    if changed:
        values[changed] = MODULES["t5" if task is Task.SEQ2SEQ else "llama"].get(changed, one.value)
    return RunConfig.model_validate(values).model_dump(mode="json")


@cache
def numbers(task: str, method: str, one: Try, changed: str) -> tuple[list[tuple[int, str, float | None]], list[str]]:
    """The numbers of a run, and what it says."""
    given = {"model": model("t5" if task == "seq2seq" else "plain_llama"), "data": data(task)}
    values = settings_of(Task(task), method, one, changed) | {name: str(path) for name, path in given.items()}
    said = [conflict.reason for conflict in check(RunConfig.model_validate(values), Machine())]
    values = {name: value for name, value in values.items() if name not in given}
    with TemporaryDirectory() as folder:
        try:
            run = train_here(Path(folder) / "run", **given, **values)
        except UserError as error:
            return [], [*said, str(error)]
        return found(run), [*said, *(note.message for note in run.of(Note))]


def found(run: Trained) -> list[tuple[int, str, float | None]]:
    measured = [
        (event.step, name, value)
        for event in run.of(Metrics)
        for name, value in event.values.items()
        if name not in MEASURED
    ]
    return [
        *measured,
        *((0, "planned", plan.total_steps * 1e9 + plan.trainable_parameters) for plan in run.of(Planned)),
    ]


def has_effect(task: str, method: str, name: str) -> bool:
    one = TRIES[name]
    changed, said = numbers(task, method, one, name)
    names = (name, *(other for other, _ in one.among))  # a run that says why another one has no effect says it of both
    differs = changed != numbers(task, method, Try(None, one.among), "")[0]
    return differs or any(other in sentence for sentence in said for other in names)


def is_repeated(task: str, method: str) -> bool:
    """True if two runs with the same settings have the same numbers; otherwise every setting would seem to have an effect."""
    same = Try(None)
    return numbers(task, method, same, "") == numbers.__wrapped__(task, method, same, "")


IN_EACH_TEST = {
    ("dpo", "lora"): ("lora_dropout", "neftune_noise_alpha", "beta"),
    ("sft", "full"): ("weight_decay", "adam_beta2"),
}


@pytest.mark.parametrize(("task", "method"), IN_EACH_TEST)
def test_a_setting_changes_a_number_or_the_run_says_why_not(task: str, method: str) -> None:
    assert is_repeated(task, method)
    tried = [name for name in IN_EACH_TEST[task, method] if (task, method, name) in set(cells())]
    assert [name for name in tried if not has_effect(task, method, name)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("task", [task.value for task in Task])
def test_every_setting_changes_a_number_or_the_run_says_why_not(task: str) -> None:
    assert [method for method in METHODS if not is_repeated(task, method)] == []
    mine = [cell for cell in cells() if cell[0] == task]
    without = [f"{method} {name}" for _, method, name in mine if not has_effect(task, method, name)]
    print(f"{task}: {len(mine)} settings x methods tried, {len(without)} without effect: {', '.join(without)}")
    assert without == []

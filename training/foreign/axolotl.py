"""Keys of axolotl's YAML (0.12 and later)."""

import math
from typing import Any

from training.config.name_lists import TRACKERS
from training.foreign.chat_keys import template_kwargs, template_name
from training.foreign.entries import Answer, Rule, Table, Values, choice, is_off, is_on, names
from training.foreign.key_files import read
from training.foreign.tasks import known_task
from training.foreign.trainer_keys import ATTENTION, OPTIMIZERS, SCHEDULERS, TRAINER, checkpointing

_TASKS = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo"}
_MESH = ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size")
DEFAULTS: Values = {
    "adapter": None, "sequence_len": 512, "micro_batch_size": 1, "num_epochs": 1, "val_set_size": 0, "lr_scheduler": "cosine",
}  # fmt: skip


def defaults(_: Values) -> Values:
    """What axolotl uses if a key is missing, where Lathe's default is another."""
    return DEFAULTS


def _method(value: Any, values: Values) -> Answer:
    """adapter, with load_in_4bit and load_in_8bit."""
    if is_off(value):
        return Answer({"method": "full"})
    bits = "4bit" if is_on(values.get("load_in_4bit")) else "8bit" if is_on(values.get("load_in_8bit")) else ""
    if value in ("lora", "qlora"):
        if value == "qlora" or bits:
            return Answer({"method": "qlora", "quantization": bits or "4bit"})
        return Answer({"method": "lora"})
    return Answer(None, "method stays lora.")


def _task(value: Any, _: Values) -> Answer:
    if is_off(value):
        return Answer({}, "is off.")
    task = known_task(value, _TASKS, "rl")
    return Answer({"task": task, "dpo_loss": "ipo"} if value == "ipo" else {"task": task})


def _trackers(values: Values) -> str:
    """The trackers that the file turns on, by use_... or by their project."""
    projects = {"wandb": "wandb_project", "mlflow": "mlflow_experiment_name", "trackio": "trackio_project_name"}
    named = {name for name, key in projects.items() if values.get(key)}
    return ", ".join(name for name in TRACKERS if is_on(values.get(f"use_{name}", name in named)))


def _use_tracker(value: Any, values: Values) -> Answer:
    return Answer({"report_to": _trackers(values)}) if is_on(value) else Answer({}, "is off.")


def _tracker_project(value: Any, values: Values) -> Answer:
    """The project of a tracker, which axolotl reports to if it is given."""
    names = _trackers(values)
    if is_off(value) or not names:
        return Answer({}, "is off.")
    return Answer({"report_to": names, "report_project": str(value)})


def _per_epoch(what: str) -> Rule:
    """evals_per_epoch and saves_per_epoch: a share of the whole training."""

    def rule(value: Any, values: Values) -> Answer:
        if not isinstance(value, (int, float)) or value <= 0:
            return Answer({f"{what}_steps": 0}, "is off.")
        if value == 1:
            return Answer({f"{what}_strategy": "epoch"})
        epochs = values.get("num_epochs")
        times = value * (epochs if isinstance(epochs, (int, float)) and epochs > 0 else 1)
        return Answer({f"{what}_steps": 1 / max(1.0001, min(1e4, times))}, "as a share of all steps.")

    return rule


def _targets(value: Any, _: Values) -> Answer:
    if is_off(value):
        return Answer({}, "is empty.")
    if isinstance(value, str):
        return Answer(None, "Lathe takes names of modules, not a pattern; target_modules stays auto.")
    return Answer({"target_modules": names(value)})


def _shards(_: Any, values: Values) -> Answer:
    """dp_shard_size: with the other sizes of the mesh it gives the number of processes."""
    sizes = [values.get(name) or 1 for name in _MESH]
    whole = all(isinstance(size, int) and size > 0 for size in sizes) and values.get("dp_shard_size")
    return Answer({"num_processes": math.prod(sizes)}, f"{' x '.join(_MESH)}.") if whole else Answer({}, "is empty.")


def _one(value: Any, _: Values) -> Answer:
    return Answer({}, "is off.") if value in (None, 1) else Answer(None, "ZeRO-3 or FSDP is the nearest.")


def _packing(value: Any, _: Values) -> Answer:
    return Answer({"packing": "packed" if is_on(value) else "none"})


_KEYS, PREFIXES = read("axolotl")
TABLE: Table = {
    **TRAINER,
    **_KEYS,
    "adapter": _method,
    "load_in_4bit": lambda value, values: Answer(
        {} if is_off(value) or is_off(values.get("adapter")) else {"quantization": "4bit"}
    ),
    "load_in_8bit": lambda value, values: Answer(
        {}
        if is_off(value) or is_off(values.get("adapter")) or is_on(values.get("load_in_4bit"))
        else {"quantization": "8bit"}
    ),
    "rl": _task,
    "optimizer": choice("optimizer", OPTIMIZERS, "adamw"),
    "lr_scheduler": choice("lr_scheduler", SCHEDULERS, "cosine"),
    "cosine_min_lr_ratio": lambda value, _: Answer(
        {} if is_off(value) else {"lr_scheduler": "cosine_with_min_lr", "min_lr_ratio": value}
    ),
    "dp_shard_size": _shards,
    "sample_packing": _packing,
    "lora_target_modules": _targets,
    "evals_per_epoch": _per_epoch("eval"),
    "saves_per_epoch": _per_epoch("save"),
    "gradient_checkpointing": checkpointing,
    "attn_implementation": choice("attention", ATTENTION, "auto"),
    "chat_template": template_name,
    "chat_template_kwargs": template_kwargs,
    **dict.fromkeys(("tensor_parallel_size", "expert_parallel_size"), _one),
    "process_reward_model": lambda value, _: (
        Answer({}, "is off.") if is_off(value) else Answer({"task": known_task("prm", _TASKS, "process_reward_model")})
    ),
    **{f"use_{name}": _use_tracker for name in TRACKERS},
    "wandb_project": _tracker_project,
    "mlflow_experiment_name": _tracker_project,
    "trackio_project_name": _tracker_project,
}

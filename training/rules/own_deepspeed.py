"""Rules on a run's own DeepSpeed JSON: its values must agree with the run's settings."""

from collections.abc import Iterator
from typing import Any

from training.config.choices import Offload, Precision
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.sharding import at, own_deepspeed
from training.rules.conflict import Conflict, rule

_SAME = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay",
    "optimizer.params.eps": "adam_epsilon",
    "scheduler.params.warmup_max_lr": "learning_rate",
}
"""Keys of the JSON and the settings with the same meaning."""


@rule
def a_deepspeed_file_needs_a_zero_strategy(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    own = own_deepspeed(config)
    if own is None:
        if config.deepspeed_config and config.strategy.zero_stage is None:
            yield _unused(config, {"deepspeed_config": None})
        return
    stage = at(own, "zero_optimization.stage") or 0
    if config.strategy.zero_stage is None:
        yield _unused(config, {"deepspeed_config": None} if stage == "auto" else {"strategy": f"zero{stage}"})
    elif stage not in ("auto", config.strategy.zero_stage):
        yield Conflict(
            ("deepspeed_config", "strategy"),
            f"The DeepSpeed file sets stage {stage}, and strategy is {config.strategy.value}.",
            f'Set strategy to zero{stage}, or write "stage": "auto".',
            {"strategy": f"zero{stage}"},
        )


def _unused(config: RunConfig, changes: dict[str, Any]) -> Conflict:
    return Conflict(
        ("deepspeed_config", "strategy"),
        f"Strategy {config.strategy.value} does not use DeepSpeed.",
        "Set strategy to zero0, zero1, zero2 or zero3, or clear deepspeed_config.",
        changes,
    )


@rule
def a_deepspeed_file_agrees_with_the_settings(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    own = own_deepspeed(config)
    for key, name in _SAME.items():
        value = at(own or {}, key)
        if value not in (None, "auto", getattr(config, name)):
            yield _differs(key, value, name, getattr(config, name), {name: value})
    total = at(own or {}, "train_batch_size")
    if total not in (None, "auto", config.global_batch_size):
        each = config.micro_batch_size * config.num_processes
        fits = {"gradient_accumulation_steps": int(total) // each} if total % each == 0 else {"deepspeed_config": None}
        yield _differs("train_batch_size", total, "global batch", config.global_batch_size, fits)


@rule
def a_deepspeed_file_has_the_precision_of_the_run(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    own = own_deepspeed(config)
    precision = machine.precision_of(config.precision)
    for key in (Precision.BF16, Precision.FP16):
        enabled = at(own or {}, f"{key.value}.enabled")
        if enabled not in (None, "auto", precision is key):
            other = key if enabled else Precision.FP32
            yield _differs(f"{key.value}.enabled", enabled, "precision", precision.value, {"precision": other.value})


@rule
def a_deepspeed_file_has_the_offload_of_the_run(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    own = own_deepspeed(config)
    for name in ("offload_optimizer", "offload_param"):
        device = at(own or {}, f"zero_optimization.{name}.device")
        if device not in (None, "auto", getattr(config, name).value):
            path = at(own or {}, f"zero_optimization.{name}.nvme_path")
            place = {"nvme_path": path} if device == Offload.NVME and path not in (None, "auto") else {}
            yield _differs(f"{name}.device", device, name, getattr(config, name).value, {name: device} | place)


@rule
def a_deepspeed_file_saves_the_complete_model(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if at(own_deepspeed(config) or {}, "zero_optimization.stage3_gather_16bit_weights_on_model_save") is False:
        yield Conflict(
            ("deepspeed_config",),
            "stage3_gather_16bit_weights_on_model_save is false: the complete model could not be saved.",
            "Set it to true in the DeepSpeed file, or remove it.",
            {"deepspeed_config": None},
            blocking=config.strategy.zero_stage == 3,
        )


def _differs(key: str, value: Any, name: str, setting: Any, changes: dict[str, Any]) -> Conflict:
    shown = str(value).lower() if isinstance(value, bool) else value
    setting = getattr(setting, "value", setting)
    return Conflict(
        ("deepspeed_config", *(changed for changed in changes if changed != "deepspeed_config")),
        f"The DeepSpeed file sets {key} to {shown}, and {name} is {setting}.",
        f'Use the same value, or write "{key.rpartition(".")[2]}": "auto" in the file.',
        changes,
    )

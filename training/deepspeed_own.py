"""A run's own DeepSpeed JSON: taken as it is, with "auto" and what it says nothing of filled in from the run's settings."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.config import RunConfig
from training.deepspeed_check import checked
from training.failure import UserError

Values = dict[str, Any]

# Without these in the file DeepSpeed would fall back on defaults that contradict the run: no clipping, no 16-bit training, an
# optimizer of its own, a model that cannot be saved whole.
_NEEDED = (
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "gradient_clipping",
    "bf16.enabled",
    "fp16.enabled",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "steps_per_print",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
)


def given(config: RunConfig) -> Values | None:
    """The JSON where it stands in the configuration; None where there is none, or a file's path, which `submit` reads."""
    text = config.deepspeed_config
    return json.loads(text) if text and text.startswith("{") else None


def read(config: RunConfig) -> Values:
    """The JSON, from its file where the configuration names one.

    Raises:
        UserError: the file cannot be read, or something in it is wrong.
    """
    text = config.deepspeed_config or ""
    try:
        return given(config) or json.loads(from_file(Path(text)))
    except (OSError, ValueError) as error:
        fix = "Give a DeepSpeed JSON file; docs/deepspeed.md explains every key."
        raise UserError("deepspeed_config", text, f"cannot be used: {error}", fix) from None


def from_file(path: Path) -> str:
    """A file's JSON, checked, in one line.

    Raises:
        OSError: it cannot be read.
        ValueError: naming each fault by its line.
    """
    return checked(path.read_text(encoding="utf-8"))


def resolve(own: Values, made: Values, config: RunConfig, hidden_size: int) -> Values:
    """`own` with every "auto" in its place; `made` is what the run's settings alone come to."""
    whole = copy.deepcopy(own)
    automatic = dict(flat(made)) | _buckets(hidden_size) | _of_optimizer(config)
    for path, value in list(flat(whole)):
        if value == "auto" and path in automatic:
            put(whole, path, automatic[path])
    for path in _NEEDED:
        if path in automatic and at(whole, path) is None:
            put(whole, path, automatic[path])
    return whole


def flat(values: Values, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path, sections opened."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def at(values: Values, path: str) -> Any:
    """The value at a path; None where there is none."""
    found: Any = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def put(values: Values, path: str, value: Any) -> None:
    """Sets the value at a path, with the sections above it."""
    *sections, name = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[name] = value


def _buckets(hidden_size: int) -> Values:
    square = hidden_size * hidden_size
    return {
        "zero_optimization.reduce_bucket_size": square,
        "zero_optimization.allgather_bucket_size": square,
        "zero_optimization.stage3_prefetch_bucket_size": square * 9 // 10,
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
        "zero_optimization.stage3_max_live_parameters": 1_000_000_000,
        "zero_optimization.stage3_max_reuse_distance": 1_000_000_000,
        "zero_optimization.offload_optimizer.device": "none",
        "zero_optimization.offload_param.device": "none",
    }


def _of_optimizer(config: RunConfig) -> Values:
    """Arguments of DeepSpeed's own optimizer and scheduler; steps are known before the data are where max_steps is set."""
    values: Values = {
        "optimizer.params.lr": config.learning_rate,
        "optimizer.params.betas": [config.adam_beta1, config.adam_beta2],
        "optimizer.params.eps": config.adam_epsilon,
        "optimizer.params.weight_decay": config.weight_decay,
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": config.learning_rate,
    }
    if config.max_steps:
        warmup = config.warmup if config.warmup >= 1 else math.ceil(config.warmup * config.max_steps)
        values |= {
            "scheduler.params.total_num_steps": config.max_steps,
            "scheduler.params.warmup_num_steps": max(1, int(warmup)),
        }
    return values

"""A run's own DeepSpeed JSON. Lathe fills in its "auto" values and required keys from the run's settings."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.config.run_config import RunConfig
from training.deepspeed_file.check import checked
from training.errors import UserError
from training.regular_files import read_regular

Values = dict[str, Any]

_MOST_BYTES = 2**20

# DeepSpeed's defaults for these keys contradict the run: no clipping, no 16-bit training, its own optimizer, a sharded result.
_REQUIRED = (
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
    """The JSON in the configuration; None if there is none, or if it is a file's path, which `submit` reads."""
    text = config.deepspeed_config
    return json.loads(text) if text and text.startswith("{") else None


def read(config: RunConfig) -> Values:
    """The JSON in the configuration, or in the file that it names.

    Raises:
        UserError: the file cannot be read or is not valid.
    """
    text = config.deepspeed_config or ""
    try:
        return given(config) or json.loads(from_file(Path(text)))
    except (OSError, ValueError) as error:
        fix = "Give a DeepSpeed JSON file; docs/deepspeed.md explains every key."
        raise UserError("deepspeed_config", text, f"cannot be used: {error}", fix) from None


def from_file(path: Path) -> str:
    """The checked JSON of a file, in one line.

    Raises:
        OSError: the file cannot be read.
        ValueError: the JSON is not valid; names each error with its line.
    """
    return checked(read_regular(path, _MOST_BYTES).decode())


def resolve(own: Values, settings: Values, sizes: Values, config: RunConfig) -> Values:
    """`own` with a value for every "auto" and for every missing key that Lathe needs.

    `settings` is the DeepSpeed JSON of the run's settings alone, `sizes` ZeRO's sizes for any stage.
    """
    resolved = copy.deepcopy(own)
    zero = {**sizes, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}}
    automatic = dict(flat(settings)) | dict(flat({"zero_optimization": zero})) | _of_optimizer(config)
    for path, value in list(flat(resolved)):
        if value == "auto" and path in automatic:
            put(resolved, path, automatic[path])
    for path in _REQUIRED:
        if path in automatic and at(resolved, path) is None:
            put(resolved, path, automatic[path])
    return resolved


def flat(values: Values, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted path and the value of every key, nested ones too."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def at(values: Values, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    value: Any = values
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def put(values: Values, path: str, value: Any) -> None:
    """Sets the value at a dotted path and creates the sections above it."""
    *sections, name = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[name] = value


def _of_optimizer(config: RunConfig) -> Values:
    """Arguments of DeepSpeed's optimizer and scheduler. The number of steps is known only if max_steps is set."""
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

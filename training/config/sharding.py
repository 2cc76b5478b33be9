"""The DeepSpeed and FSDP configuration of a run, without "auto": that of its settings, or its own DeepSpeed JSON, completed.

No torch: the page shows it before the run starts.
"""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.config.choices import LoraInit, Method, Offload, Precision, Strategy
from training.config.run_config import RunConfig
from training.deepspeed_file.check import checked
from training.errors import UserError
from training.files import read_regular

# The hidden size of a 7B model, if the model's own is not known.
_TYPICAL_HIDDEN_SIZE = 4096

MAX_LIVE_PARAMETERS = 1_000_000_000
"""Elements that ZeRO-3 keeps gathered at most."""

QUANTIZED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
"""The settings of ZeRO++ that use DeepSpeed's CUDA quantizer."""

# DeepSpeed's recommended values for NVMe disks: blocks of 1 MiB, 8 requests at a time, reads and writes overlapped.
_AIO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


def deepspeed_config(config: RunConfig, hidden_size: int | None, precision: Precision) -> dict[str, Any] | None:
    """The DeepSpeed JSON for `config`, or None if its strategy is not ZeRO. `precision` must not be auto. Raises UserError if the
    configuration's own DeepSpeed JSON cannot be used."""
    stage = config.strategy.zero_stage
    if stage is None:
        return None
    hidden = hidden_size or _TYPICAL_HIDDEN_SIZE
    settings = _from_settings(config, stage, hidden, precision)
    if not config.deepspeed_config:
        return settings
    sizes = {**bucket_sizes(hidden), **stage_3_sizes(hidden)}
    return _resolve(_read(config), settings, sizes, config)


def _from_settings(config: RunConfig, stage: int, hidden_size: int, precision: Precision) -> dict[str, Any]:
    nvme = Offload.NVME in (config.offload_optimizer, config.offload_param)
    return {
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "train_batch_size": config.global_batch_size,
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": precision is Precision.BF16},
        "fp16": {"enabled": precision is Precision.FP16},
        "zero_optimization": _zero(config, stage, hidden_size),
        **({"aio": _AIO} if nvme else {}),
        # Runs use the same optimizer with and without DeepSpeed, so that a strategy changes memory and not the result.
        # zero_allow_untested_optimizer must be true for an optimizer that is not DeepSpeed's.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000_000,
        "wall_clock_breakdown": False,
    }


def bucket_sizes(hidden_size: int) -> dict[str, int]:
    """Elements of the communication buckets: transformers' rule for "auto". DeepSpeed's default of 5e8 elements takes 9 GB
    with overlapped communication."""
    return {"reduce_bucket_size": hidden_size**2, "allgather_bucket_size": hidden_size**2}


def stage_3_sizes(hidden_size: int) -> dict[str, int]:
    """ZeRO-3's limits, in elements: transformers' rule for "auto"."""
    return {
        "stage3_prefetch_bucket_size": hidden_size**2 * 9 // 10,
        "stage3_param_persistence_threshold": 10 * hidden_size,
        "stage3_max_live_parameters": MAX_LIVE_PARAMETERS,
        "stage3_max_reuse_distance": MAX_LIVE_PARAMETERS,
    }


def _zero(config: RunConfig, stage: int, hidden_size: int) -> dict[str, Any]:
    buckets = bucket_sizes(hidden_size)
    zero: dict[str, Any] = {"stage": stage}
    if stage >= 1:
        reduce = buckets["reduce_bucket_size"]
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": reduce}
    if stage in (1, 2):
        gather = buckets["allgather_bucket_size"]
        zero |= {"allgather_partitions": True, "allgather_bucket_size": gather, "reduce_scatter": True}
    if stage == 3:
        zero |= {**stage_3_sizes(hidden_size), "stage3_gather_16bit_weights_on_model_save": True}
        zero |= {name: True for name in QUANTIZED if getattr(config, name)}
        if config.zero_hpz_partition_size > 1:
            zero["zero_hpz_partition_size"] = config.zero_hpz_partition_size
    if config.offload_optimizer is not Offload.NONE:
        zero["offload_optimizer"] = _offload(config.offload_optimizer, config)
    if config.offload_param is not Offload.NONE:
        zero["offload_param"] = _offload(config.offload_param, config)
    return zero


def _offload(device: Offload, config: RunConfig) -> dict[str, Any]:
    path = {"nvme_path": config.nvme_path} if device is Offload.NVME else {}
    return {"device": device.value, "pin_memory": True, **path}


def fsdp_config(config: RunConfig) -> dict[str, Any] | None:
    """transformers' `fsdp_config` for `config`, or None if its strategy is not FSDP."""
    if config.strategy is not Strategy.FSDP:
        return None
    return {
        "version": 2,
        # Gathers one transformer layer at a time, and frees it between its forward and backward pass.
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "cpu_offload": config.offload_param is Offload.CPU,
        # Each rank saves its shard in a checkpoint; training/results/finish.py gathers the result at the end.
        "state_dict_type": "SHARDED_STATE_DICT",
        # transformers' layers recompute themselves; torch's wrappers would hide an adapter from PEFT, which then saves nothing.
        "activation_checkpointing": False,
        # training/models/placement.py turns it off for models with buffers in their files.
        "cpu_ram_efficient_loading": loads_on_one_rank(config),
    }


def loads_on_one_rank(config: RunConfig) -> bool:
    """True if one rank of a machine reads the weights, and sends each rank its shard when FSDP divides the model."""
    return config.strategy is Strategy.FSDP and _begins_with_files(config)


def loads_on_devices(config: RunConfig) -> bool:
    """True if each rank reads the weights directly onto its GPU, which trains them whole."""
    return config.strategy not in (Strategy.FSDP, Strategy.ZERO3) and _begins_with_files(config)


def _begins_with_files(config: RunConfig) -> bool:
    """True if nothing is computed from the weights before training: quantized ones, and some adapters' first matrices."""
    plain_lora = config.method is Method.LORA and config.lora_init is LoraInit.DEFAULT and not config.use_dora
    return config.method is Method.FULL or plain_lora


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


def own_deepspeed(config: RunConfig) -> Values | None:
    """The JSON in the configuration; None if there is none, or if it is a file's path, which `submit` reads."""
    text = config.deepspeed_config
    return json.loads(text) if text and text.startswith("{") else None


def _read(config: RunConfig) -> Values:
    """The JSON in the configuration, or in the file that it names.

    Raises:
        UserError: the file cannot be read or is not valid.
    """
    text = config.deepspeed_config or ""
    try:
        return own_deepspeed(config) or json.loads(deepspeed_from_file(Path(text)))
    except (OSError, ValueError) as error:
        fix = "Give a DeepSpeed JSON file; docs/deepspeed.md explains every key."
        raise UserError("deepspeed_config", text, f"cannot be used: {error}", fix) from None


def deepspeed_from_file(path: Path) -> str:
    """The checked JSON of a file, in one line. Raises OSError if the file cannot be read, and ValueError if the JSON is not
    valid; names each error with its line."""
    return checked(read_regular(path, _MOST_BYTES).decode())


def _resolve(own: Values, settings: Values, sizes: Values, config: RunConfig) -> Values:
    """`own` with a value for every "auto" and for every missing key that Lathe needs.

    `settings` is the DeepSpeed JSON of the run's settings alone, `sizes` ZeRO's sizes for any stage.
    """
    resolved = copy.deepcopy(own)
    zero = {**sizes, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}}
    automatic = dict(_flat(settings)) | dict(_flat({"zero_optimization": zero})) | _of_optimizer(config)
    for path, value in list(_flat(resolved)):
        if value == "auto" and path in automatic:
            _put(resolved, path, automatic[path])
    for path in _REQUIRED:
        if path in automatic and at(resolved, path) is None:
            _put(resolved, path, automatic[path])
    return resolved


def _flat(values: Values, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted path and the value of every key, nested ones too."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def at(values: Values, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    value: Any = values
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _put(values: Values, path: str, value: Any) -> None:
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

"""The DeepSpeed and FSDP configuration of a run, without "auto". No torch: the page shows it before the run starts."""

from typing import Any

from training.config.choices import LoraInit, Method, Offload, Precision, Strategy
from training.config.own_deepspeed import read, resolve
from training.config.run_config import RunConfig

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
    """The DeepSpeed JSON for `config`, or None if its strategy is not ZeRO. `precision` must not be auto.

    Raises:
        UserError: the configuration's own DeepSpeed JSON cannot be used.
    """
    stage = config.strategy.zero_stage
    if stage is None:
        return None
    hidden = hidden_size or _TYPICAL_HIDDEN_SIZE
    settings = _from_settings(config, stage, hidden, precision)
    if not config.deepspeed_config:
        return settings
    sizes = {**bucket_sizes(hidden), **stage_3_sizes(hidden)}
    return resolve(read(config), settings, sizes, config)


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

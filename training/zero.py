"""The DeepSpeed configuration of a run, every value resolved. No torch: the page shows it before anything runs."""

from typing import Any

from training.config import Offload, Precision, RunConfig
from training.deepspeed_own import read, resolve

# Without a model's hidden size, buckets are sized for one of 4096, as in a 7B model.
_TYPICAL_HIDDEN_SIZE = 4096

QUANTIZED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
"""ZeRO++'s settings that DeepSpeed's CUDA quantizer works for."""

# What DeepSpeed's own guide uses for NVMe disks: blocks of 1 MiB, 8 requests at a time, reading and writing overlapped.
_AIO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


def deepspeed_config(config: RunConfig, hidden_size: int | None, precision: Precision) -> dict[str, Any] | None:
    """The DeepSpeed JSON for `config`, or None where its strategy is not ZeRO. `precision` is a resolved one, not auto.

    Raises:
        UserError: the configuration names a DeepSpeed file that cannot be used.
    """
    stage = config.strategy.zero_stage
    if stage is None:
        return None
    made = _made(config, stage, hidden_size or _TYPICAL_HIDDEN_SIZE, precision)
    if not config.deepspeed_config:
        return made
    return resolve(read(config), made, config, hidden_size or _TYPICAL_HIDDEN_SIZE)


def _made(config: RunConfig, stage: int, hidden_size: int, precision: Precision) -> dict[str, Any]:
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
        # The optimizer is torch's AdamW, the same as without DeepSpeed, so that strategies differ in memory and not in
        # what they learn; DeepSpeed asks for a word of consent for an optimizer that is not its own.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000_000,
        "wall_clock_breakdown": False,
    }


def _zero(config: RunConfig, stage: int, hidden_size: int) -> dict[str, Any]:
    bucket = hidden_size * hidden_size
    zero: dict[str, Any] = {"stage": stage}
    if stage >= 1:
        # Buckets follow the hidden size (transformers' own rule for "auto"), not DeepSpeed's 5e8 elements, which with
        # overlapped communication hold 9 GB.
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": bucket}
    if stage in (1, 2):
        zero |= {"allgather_partitions": True, "allgather_bucket_size": bucket, "reduce_scatter": True}
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": bucket * 9 // 10,
            "stage3_param_persistence_threshold": 10 * hidden_size,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        zero |= {name: True for name in QUANTIZED if getattr(config, name)}
        if config.zero_hpz_partition_size > 1:
            zero["zero_hpz_partition_size"] = config.zero_hpz_partition_size
    if config.offload_optimizer is not Offload.NONE:
        zero["offload_optimizer"] = _offload(config.offload_optimizer, config)
    if config.offload_param is not Offload.NONE:
        zero["offload_param"] = _offload(config.offload_param, config)
    return zero


def _offload(to: Offload, config: RunConfig) -> dict[str, Any]:
    place = {"nvme_path": config.nvme_path} if to is Offload.NVME else {}
    return {"device": to.value, "pin_memory": True, **place}

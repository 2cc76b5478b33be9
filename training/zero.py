"""The DeepSpeed configuration of a run, every value resolved. No torch: the page shows it before anything runs."""

from typing import Any

from training.config import Offload, Precision, RunConfig

# Without a model's hidden size, buckets are sized for one of 4096, as in a 7B model.
_TYPICAL_HIDDEN_SIZE = 4096


def deepspeed_config(config: RunConfig, hidden_size: int | None, precision: Precision) -> dict[str, Any] | None:
    """The DeepSpeed JSON for `config`, or None where its strategy is not ZeRO. `precision` is a resolved one, not auto."""
    stage = config.strategy.zero_stage
    if stage is None:
        return None
    return {
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "train_batch_size": config.global_batch_size,
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": precision is Precision.BF16},
        "fp16": {"enabled": precision is Precision.FP16},
        "zero_optimization": _zero(config, stage, hidden_size or _TYPICAL_HIDDEN_SIZE),
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
    if config.offload_optimizer is Offload.CPU:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if config.offload_param is Offload.CPU:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero

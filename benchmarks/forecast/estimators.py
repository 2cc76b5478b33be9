"""What other programs estimate for the same configurations, in bytes."""

from typing import Any

from training.config.choices import Strategy
from training.config.run_config import RunConfig
from training.forecast.formula.sizes import resolved
from training.models.target_modules import empty_model


def accelerate_says(config: RunConfig) -> int:
    """The estimate of `accelerate estimate-memory`: the largest of its columns for training with Adam."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    size, _ = calculate_maximum_sizes(_empty(config))
    names = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    return int(max(estimate_training_usage(size, names[resolved(config.precision, None).value]).values()))


def deepspeed_says(config: RunConfig) -> int | None:
    """DeepSpeed's estimate of the memory per GPU of ZeRO-2 or ZeRO-3, without offload; None for other strategies."""
    if config.strategy not in (Strategy.ZERO2, Strategy.ZERO3):
        return None
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    model, ranks = _empty(config), config.num_processes
    total = sum(parameter.numel() for parameter in model.parameters())
    if config.strategy is Strategy.ZERO2:
        return int(estimate_zero2_model_states_mem_needs(total, ranks, cpu_offload=False)[1])
    largest = max(sum(parameter.numel() for parameter in part.parameters(recurse=False)) for part in model.modules())
    estimate = estimate_zero3_model_states_mem_needs(total, largest, ranks, cpu_offload=False, cpu_offload_params=False)
    return int(estimate[1])


def _empty(config: RunConfig) -> Any:
    return empty_model(config)

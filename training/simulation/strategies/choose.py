"""Chooses the simulation of a run's strategy."""

from typing import Any

import torch
from transformers import AutoConfig

from training.config.choices import Precision, Quantization, Strategy
from training.config.run_config import RunConfig
from training.config.sharding import deepspeed_config
from training.simulation.strategies.ddp import Unsharded
from training.simulation.strategies.fsdp import Fsdp
from training.simulation.strategies.strategy import SimulatedStrategy, elements
from training.simulation.strategies.zero import Zero
from training.simulation.timeline import Timeline


def simulated_strategy(
    model: Any, config: RunConfig, precision: Precision, live: Timeline, *, on_cpu: bool, last: bool = False
) -> SimulatedStrategy:
    """Returns the simulation of the strategy's part of a rank's memory, of the `last` rank or of the fullest."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ranks, stage = config.num_processes, config.strategy.zero_stage
    if stage is not None:
        hidden_size = model.config.get_text_config().hidden_size
        settings = (deepspeed_config(config, hidden_size, precision) or {})["zero_optimization"]
        if stage == 3:
            files = _file_bytes(model, config) if on_cpu and config.quantized is Quantization.NONE else 0
            from training.simulation.strategies.zero3 import Zero3

            return Zero3(model, trained, live, ranks, settings, files, recomputes=config.recomputes)
        return Zero(model, trained, live, ranks if stage else 1, settings, micro_steps(config), last=last)
    if config.strategy is Strategy.FSDP and ranks > 1:
        return Fsdp(model, trained, live, config, precision, on_cpu=on_cpu)
    return Unsharded(model, trained, live, ranks)


def ranks_differ(config: RunConfig) -> bool:
    """True if ranks keep different gradients: with ZeRO-1 and ZeRO-2 those of the weights that their part touches."""
    return config.strategy.zero_stage in (1, 2) and config.num_processes > 1 and not config.method.adapts


def micro_steps(config: RunConfig) -> int:
    """The micro steps that are simulated of each step."""
    return min(2, config.gradient_accumulation_steps)


def _file_bytes(model: Any, config: RunConfig) -> int:
    """Bytes of the model's files, which have the format of its config.json; an adapter's weights are not in them."""
    stored = AutoConfig.from_pretrained(config.model, revision=config.revision or "main").dtype or torch.float32
    loaded = [weight for weight in model.parameters() if not (config.method.adapts and weight.requires_grad)]
    return elements(loaded) * stored.itemsize

"""Makes a run's optimizer over fake parameters, or only its state if its kernels need values."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from training.config.choices import OptimizerName
from training.config.run_config import RunConfig
from training.simulation.timeline import Timeline
from training.trainer.optimizers import optimizer_arguments, optimizer_factory

_SMALL = 4096  # bitsandbytes and torchao keep the state of a weight with fewer elements in fp32
_FP32 = 4
# Number of moments, bytes per element of each, and elements per fp32 scale (Dettmers et al., "8-bit Optimizers via Block-wise
# Quantization", 2022; bitsandbytes/optim/optimizer.py, torchao/optim/adam.py).
_QUANTIZED = {
    OptimizerName.ADAMW_8BIT: (2, 1.0, 256),
    OptimizerName.LION_8BIT: (1, 1.0, 256),
    OptimizerName.ADAMW_TORCHAO_8BIT: (2, 1.0, 256),
    OptimizerName.ADAMW_TORCHAO_4BIT: (2, 0.5, 128),
}


class StateOnly:
    """Allocates the state of an optimizer in its first step, without computing."""

    def __init__(self, live: Timeline, parameters: Sequence[torch.Tensor], config: RunConfig) -> None:
        self._live, self._parameters = live, parameters
        self._kind = _QUANTIZED.get(config.optimizer)  # None for paged state, which is not device memory
        self._state: list[torch.Tensor] = []

    def step(self) -> None:
        """Allocates the state, once."""
        if self._kind and not self._state:
            sizes = [state_bytes(parameter.numel(), *self._kind) for parameter in self._parameters]
            self._state = [self._live.allocate("optimizer", size, torch.uint8) for size in sizes]


def state_bytes(elements: int, moments: int, width: float, block: int) -> int:
    """Returns the bytes of a weight's moments."""
    if elements < _SMALL:
        return moments * _FP32 * elements
    return moments * (int(width * elements) + _FP32 * -(-elements // block))


def fake_optimizer(model: Any, parameters: list[torch.nn.Parameter], config: RunConfig, live: Timeline) -> Any:
    """Makes the optimizer as the Trainer does, without the parameters on meta, which are offloaded."""
    on_device = [parameter for parameter in parameters if not parameter.is_meta]
    if not on_device or config.optimizer in _QUANTIZED or config.optimizer.paged:
        return StateOnly(live, on_device, config)
    arguments = TrainingArguments(output_dir="unused", use_cpu=True, report_to=[], **optimizer_arguments(config))
    cls, settings = optimizer_factory(config) or Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    if config.optimizer is OptimizerName.MUON:
        return cls()(model, **settings)
    return cls(on_device, **settings)

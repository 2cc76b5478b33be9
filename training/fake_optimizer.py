"""A run's optimizer over fake parameters, or its state alone where its kernels cannot run without values."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from training.config import OptimizerName, RunConfig
from training.live_timeline import Timeline
from training.optimizers import optimizer_arguments, optimizer_factory

_SMALL = 4096  # elements below which bitsandbytes and torchao keep the state of a weight in fp32
_FP32 = 4
# Moments, bytes of each an element, and elements that share a scale in fp32 (Dettmers et al., "8-bit Optimizers via Block-wise
# Quantization", 2022; bitsandbytes/optim/optimizer.py, torchao/optim/adam.py).
_QUANTIZED = {
    OptimizerName.ADAMW_8BIT: (2, 1.0, 256),
    OptimizerName.LION_8BIT: (1, 1.0, 256),
    OptimizerName.ADAMW_TORCHAO_8BIT: (2, 1.0, 256),
    OptimizerName.ADAMW_TORCHAO_4BIT: (2, 0.5, 128),
}


class StateOnly:
    """Stands for an optimizer by what its first step allocates."""

    def __init__(self, live: Timeline, parameters: Sequence[torch.Tensor], config: RunConfig) -> None:
        self._live, self._parameters = live, parameters
        self._kind = _QUANTIZED.get(config.optimizer)  # none: paged state is no memory of the device's own
        self._state: list[torch.Tensor] = []

    def step(self) -> None:
        """Allocates the state, once."""
        if self._kind and not self._state:
            sizes = [state_bytes(one.numel(), *self._kind) for one in self._parameters]
            self._state = [self._live.allot("optimizer", size, torch.uint8) for size in sizes]


def state_bytes(elements: int, moments: int, width: float, block: int) -> int:
    """Bytes of the moments of a weight."""
    if elements < _SMALL:
        return moments * _FP32 * elements
    return moments * (int(width * elements) + _FP32 * -(-elements // block))


def fake_optimizer(model: Any, parameters: list[torch.nn.Parameter], config: RunConfig, live: Timeline) -> Any:
    """The optimizer as the Trainer makes it; parameters on meta are offloaded, and it has nothing of theirs."""
    here = [one for one in parameters if not one.is_meta]
    if not here or config.optimizer in _QUANTIZED or config.optimizer.paged:
        return StateOnly(live, here, config)
    arguments = TrainingArguments(output_dir="unused", use_cpu=True, report_to=[], **optimizer_arguments(config))
    cls, settings = optimizer_factory(config) or Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    if config.optimizer is OptimizerName.MUON:
        return cls()(model, **settings)
    return cls(here, **settings)

"""Makes a run's optimizer over fake parameters, or only its state if its kernels need values."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from training.config.choices import Method, OptimizerName
from training.config.run_config import RunConfig
from training.simulation.timeline import Timeline
from training.trainer.optimizers import optimizer_arguments, optimizer_factory, split_parameters

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
_BITSANDBYTES = (OptimizerName.ADAMW_8BIT, OptimizerName.LION_8BIT)


class StateOnly:
    """Allocates the state of an optimizer in its first step, of these sizes in bytes, without computing."""

    def __init__(self, live: Timeline, sizes: Sequence[int]) -> None:
        self._live, self._sizes = live, sizes
        self._state: list[torch.Tensor] = []

    def step(self) -> None:
        """Allocates the state, once."""
        if not self._state:
            self._state = [self._live.allocate("optimizer", size, torch.uint8) for size in self._sizes]


_IMPORTANCE = 3
"""Values per weight of an AdaLoRA: its importance, and the running means of that and of its uncertainty (peft's RankAllocator)."""


class WithImportance:
    """An optimizer whose step also measures the importance of an AdaLoRA's weights."""

    def __init__(self, optimizer: Any, live: Timeline, parameters: Sequence[torch.Tensor]) -> None:
        self._optimizer, self._live, self._parameters = optimizer, live, parameters
        self._state: list[torch.Tensor] = []

    def step(self) -> None:
        """Takes the optimizer's step, and measures."""
        self._optimizer.step()
        if not self._state:
            sizes = [weight.numel() for weight in self._parameters for _ in range(_IMPORTANCE)]
            self._state = [self._live.allocate("optimizer", size, torch.float32) for size in sizes]


def state_bytes(elements: int, moments: int, width: float, block: int) -> int:
    """Returns the bytes of a weight's moments."""
    if elements < _SMALL:
        return moments * _FP32 * elements
    return moments * (int(width * elements) + _FP32 * -(-elements // block))


def fake_optimizer(model: Any, parameters: list[torch.nn.Parameter], config: RunConfig, live: Timeline) -> Any:
    """Makes the optimizer as the Trainer does, without the parameters on meta, which are offloaded."""
    optimizer = _optimizer(model, parameters, config, live)
    return WithImportance(optimizer, live, parameters) if config.method is Method.ADALORA else optimizer


def _optimizer(model: Any, parameters: list[torch.nn.Parameter], config: RunConfig, live: Timeline) -> Any:
    on_device = [parameter for parameter in parameters if not parameter.is_meta]
    if not on_device or config.optimizer.paged:
        return StateOnly(live, [])  # paged state is not device memory
    if config.optimizer in _QUANTIZED:
        return StateOnly(live, _quantized_sizes(model, on_device, config.optimizer))
    arguments = TrainingArguments(output_dir="unused", use_cpu=True, report_to=[], **optimizer_arguments(config))
    cls, settings = optimizer_factory(config) or Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    if config.optimizer is OptimizerName.MUON:
        whole = [weight for weight in model.parameters() if weight.requires_grad]
        return (
            cls()(model, **settings) if whole[0] is parameters[0] else StateOnly(live, _muon_sizes(model, parameters))
        )
    return cls(on_device, **settings)


def _quantized_sizes(model: Any, parameters: Sequence[torch.Tensor], optimizer: OptimizerName) -> list[int]:
    """Returns the bytes of each weight's state. The Trainer has bitsandbytes keep that of embeddings in fp32."""
    moments, width, block = _QUANTIZED[optimizer]
    embeddings = {id(one.weight) for one in model.modules() if isinstance(one, torch.nn.Embedding)}
    whole = embeddings if optimizer in _BITSANDBYTES else set()
    return [
        moments * _FP32 * one.numel() if id(one) in whole else state_bytes(one.numel(), moments, width, block)
        for one in parameters
    ]


def _muon_sizes(model: Any, shards: Sequence[torch.Tensor]) -> list[int]:
    """Returns the bytes of the state of each trained weight's shard: one moment of a matrix, two of other weights."""
    matrices = {id(weight) for weight in split_parameters(model)[0]}
    trained = (weight for weight in model.parameters() if weight.requires_grad)
    return [
        (1 if id(weight) in matrices else 2) * shard.numel() * shard.element_size()
        for weight, shard in zip(trained, shards, strict=True)
    ]

"""Makes a run's optimizer over fake parameters, or only its state if its kernels need values."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from training.config.choices import Method
from training.config.optimizer_name import OptimizerName, QuantizedState
from training.config.run_config import RunConfig
from training.forecast.formula.sizes import FP32
from training.simulation.timeline import Timeline
from training.trainer.optimizers import optimizer_arguments, optimizer_factory, split_parameters

_IMPORTANCE = 3
"""Values per weight of an AdaLoRA: its importance, and the running means of that and of its uncertainty (peft's RankAllocator)."""


class FakeState:
    """Allocates state in its first step, tensors of these `elements`, after the step of the `optimizer`, if there is one."""

    def __init__(self, live: Timeline, elements: Sequence[int], dtype: torch.dtype, optimizer: Any = None) -> None:
        self._live, self._elements, self._dtype, self._optimizer = live, elements, dtype, optimizer
        self._state: list[torch.Tensor] = []

    def step(self) -> None:
        """Takes the optimizer's step, and allocates the state, once."""
        if self._optimizer is not None:
            self._optimizer.step()
        if not self._state:
            self._state = [self._live.allocate("optimizer", size, self._dtype) for size in self._elements]


def fake_optimizer(model: Any, parameters: list[torch.nn.Parameter], config: RunConfig, live: Timeline) -> Any:
    """Makes the optimizer as the Trainer does, without the parameters on meta, which are offloaded."""
    optimizer = _optimizer(model, parameters, config, live)
    if config.method is not Method.ADALORA:
        return optimizer
    measured = [weight.numel() for weight in parameters for _ in range(_IMPORTANCE)]
    return FakeState(live, measured, torch.float32, optimizer)


def _optimizer(model: Any, parameters: list[torch.nn.Parameter], config: RunConfig, live: Timeline) -> Any:
    on_device = [parameter for parameter in parameters if not parameter.is_meta]
    traits = config.optimizer.traits
    if not on_device or traits.paged:
        return FakeState(live, [], torch.uint8)  # paged state is not device memory
    if isinstance(traits.state, QuantizedState):
        plain = _embeddings(model) if traits.fp32_state_of_embeddings else set()
        return FakeState(live, [_quantized_size(weight, traits.state, plain) for weight in on_device], torch.uint8)
    arguments = TrainingArguments(output_dir="unused", use_cpu=True, report_to=[], **optimizer_arguments(config))
    cls, settings = optimizer_factory(config) or Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    if config.optimizer is OptimizerName.MUON:
        whole = [weight for weight in model.parameters() if weight.requires_grad]
        if whole[0] is parameters[0]:
            return cls()(model, **settings)
        return FakeState(live, _muon_sizes(model, parameters), torch.uint8)
    return cls(on_device, **settings)


def _embeddings(model: Any) -> set[int]:
    """Returns the `id`s of the embeddings' weights."""
    return {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}


def _quantized_size(weight: torch.Tensor, state: QuantizedState, plain: set[int]) -> int:
    """Returns the bytes of a weight's state, which is fp32 if the weight is one of `plain`."""
    return state.moments * FP32 * weight.numel() if id(weight) in plain else state.bytes_of(weight.numel())


def _muon_sizes(model: Any, shards: Sequence[torch.Tensor]) -> list[int]:
    """Returns the bytes of the state of each trained weight's shard: one moment of a matrix, two of other weights."""
    matrices = {id(weight) for weight in split_parameters(model)[0]}
    trained = (weight for weight in model.parameters() if weight.requires_grad)
    return [
        (1 if id(weight) in matrices else 2) * shard.numel() * shard.element_size()
        for weight, shard in zip(trained, shards, strict=True)
    ]

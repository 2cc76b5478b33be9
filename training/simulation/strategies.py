"""Simulates what a distributed strategy allocates and frees on one rank, with fake tensors, during a step of the whole model.

Each class follows the source of torch or DeepSpeed and was checked against measured runs (benchmarks/forecast/command.py).
"""

from collections.abc import Iterable

import torch

from training.config.choices import Strategy
from training.config.run_config import RunConfig
from training.simulation.timeline import Timeline

Weights = list[torch.nn.Parameter]

_BROADCAST_BYTES = 250 * 2**20  # DDP's buffer to broadcast rank 0's weights (torch/nn/parallel/distributed.py)


class SimulatedStrategy:
    """One rank's part of a model. `parameters` are those of its optimizer."""

    parameters: Weights

    def __init__(self, live: Timeline) -> None:
        self._live = live

    def enter(self, module: str, phase: str) -> None:
        """Called when the forward or backward pass enters a module."""

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        """Called when a weight's gradient is complete."""
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")

    def on_backward_end(self) -> None:
        """Called after each backward pass."""

    def on_step_begin(self) -> None:
        """Called before the optimizer's step."""

    def on_step_end(self) -> None:
        """Called after the optimizer's step."""
        for weight in self.parameters:
            weight.grad = None


class Unsharded(SimulatedStrategy):
    """A single device, or DDP, whose buckets hold a second copy of the gradients (torch/csrc/distributed/c10d/reducer.cpp)."""

    def __init__(self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int) -> None:
        super().__init__(live)
        live.hold(model, "weights")
        self.parameters = trained
        if ranks > 1:
            live.allocate("buckets", min(bytes_of(model.parameters()), _BROADCAST_BYTES), torch.uint8)  # freed at once
            self._buckets = [live.allocate("buckets", weight.numel(), weight.dtype) for weight in trained]


def shards(config: RunConfig) -> bool:
    """True if each rank keeps only a part of the weights."""
    return config.strategy is Strategy.ZERO3 or (config.strategy is Strategy.FSDP and config.num_processes > 1)


def elements(weights: Iterable[torch.Tensor]) -> int:
    """Returns the total number of elements."""
    return sum(weight.numel() for weight in weights)


def bytes_of(weights: Iterable[torch.Tensor]) -> int:
    """Returns the total size in bytes."""
    return sum(weight.numel() * weight.element_size() for weight in weights)

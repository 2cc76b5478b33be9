"""Simulates the memory of a rank that keeps all weights: a single device, or DDP (training/simulation/strategies/strategy.py)."""

import torch

from training.simulation.strategies.strategy import Weights, bytes_of
from training.simulation.timeline import Timeline

_BROADCAST_BYTES = 250 * 2**20  # DDP's buffer to broadcast rank 0's weights (torch/nn/parallel/distributed.py)


class Unsharded:
    """A single device, or DDP, whose buckets hold a second copy of the gradients (torch/csrc/distributed/c10d/reducer.cpp)."""

    def __init__(self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int) -> None:
        live.hold(model, "weights")
        self.parameters, self._live = trained, live
        if ranks > 1:
            live.allocate("buckets", min(bytes_of(model.parameters()), _BROADCAST_BYTES), torch.uint8)  # freed at once
            self._buckets = [live.allocate("buckets", weight.numel(), weight.dtype) for weight in trained]

    def enter(self, module: str, phase: str) -> None:
        pass

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")

    def on_backward_end(self) -> None:
        pass

    def on_step_begin(self) -> None:
        pass

    def on_step_end(self) -> None:
        for weight in self.parameters:
            weight.grad = None

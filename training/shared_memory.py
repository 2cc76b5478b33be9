"""What sharing a model among ranks allocates and frees on one of them, played on fake tensors beside a step of the whole model.

Each class says what its library keeps and when, as read in torch's and DeepSpeed's source and held against counted runs
(benchmarks/forecast.py). Where ranks differ it is the last one, which owns the parameters whose gradients come first.
"""

from collections.abc import Iterable
from typing import Protocol

import torch

from training.config import RunConfig, Strategy
from training.live_timeline import Timeline

Weights = list[torch.nn.Parameter]
_BROADCAST_BYTES = 250 * 2**20  # in which DDP sends the first rank's weights (torch/nn/parallel/distributed.py)


class Sharing(Protocol):
    """One rank's part of a model. `parameters` are what its optimizer steps over."""

    parameters: Weights

    def enter(self, module: str, phase: str) -> None:
        """The forward or backward pass comes to a module."""

    def accumulated(self, weight: torch.nn.Parameter) -> None:
        """A weight's gradient is there."""

    def backward_ends(self) -> None: ...

    def step_begins(self) -> None: ...

    def step_ends(self) -> None: ...


def shards(config: RunConfig) -> bool:
    """Whether a rank keeps a part of the weights alone."""
    return config.strategy is Strategy.ZERO3 or (config.strategy is Strategy.FSDP and config.num_processes > 1)


def elements(weights: Iterable[torch.Tensor]) -> int:
    """How many numbers they hold."""
    return sum(one.numel() for one in weights)


def bytes_of(weights: Iterable[torch.Tensor]) -> int:
    """How much they take."""
    return sum(one.numel() * one.element_size() for one in weights)


class Whole:
    """A device alone, or DDP, whose buckets hold the gradients a second time (torch/csrc/distributed/c10d/reducer.cpp)."""

    def __init__(self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int) -> None:
        live.hold(model, "weights")
        self.parameters, self._live = trained, live
        if ranks > 1:
            live.allot("buckets", min(bytes_of(model.parameters()), _BROADCAST_BYTES), torch.uint8)  # for a moment
            self._buckets = [live.allot("buckets", one.numel(), one.dtype) for one in trained]

    def enter(self, module: str, phase: str) -> None:
        pass

    def accumulated(self, weight: torch.nn.Parameter) -> None:
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")

    def backward_ends(self) -> None:
        pass

    def step_begins(self) -> None:
        pass

    def step_ends(self) -> None:
        for weight in self.parameters:
            weight.grad = None


class Gathering:
    """Weights of which a rank keeps 1/ranks, made whole by groups: the weights that live between `enter` and `_release`."""

    def __init__(self, model: torch.nn.Module, live: Timeline) -> None:
        self._live = live
        self._whole: dict[int, list[torch.Tensor]] = {}
        self._model = model

    def _gather(self, group: int, weights: Weights) -> None:
        if group not in self._whole:
            self._whole[group] = [self._live.allot("gathered", one.numel(), one.dtype) for one in weights]

    def _release(self, group: int) -> None:
        self._whole.pop(group, None)

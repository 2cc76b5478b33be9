"""Simulates what a distributed strategy allocates and frees on one rank, with fake tensors, during a step of the whole model.

Each class follows the source of torch or DeepSpeed and was checked against measured runs (benchmarks/forecast/command.py). Where
ranks differ (training/simulation/strategies/choose.py), the fullest and the last one are simulated, and the larger counts.
"""

from collections.abc import Iterable
from typing import Protocol

import torch

from training.config.choices import Strategy
from training.config.run_config import RunConfig
from training.simulation.timeline import Timeline

Weights = list[torch.nn.Parameter]


class SimulatedStrategy(Protocol):
    """One rank's part of a model. `parameters` are those of its optimizer."""

    parameters: Weights

    def enter(self, module: str, phase: str) -> None:
        """Called when the forward or backward pass enters a module."""

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        """Called when a weight's gradient is complete."""

    def on_backward_end(self) -> None: ...

    def on_step_begin(self) -> None: ...

    def on_step_end(self) -> None: ...


def shards(config: RunConfig) -> bool:
    """True if each rank keeps only a part of the weights."""
    return config.strategy is Strategy.ZERO3 or (config.strategy is Strategy.FSDP and config.num_processes > 1)


def elements(weights: Iterable[torch.Tensor]) -> int:
    """Returns the total number of elements."""
    return sum(weight.numel() for weight in weights)


def bytes_of(weights: Iterable[torch.Tensor]) -> int:
    """Returns the total size in bytes."""
    return sum(weight.numel() * weight.element_size() for weight in weights)


class Gathering:
    """Sharded weights, gathered by groups: a group's whole weights live from `_gather` to `_release`."""

    def __init__(self, model: torch.nn.Module, live: Timeline) -> None:
        self._live = live
        self._whole: dict[int, list[torch.Tensor]] = {}
        self._model = model

    def _gather(self, group: int, weights: Weights) -> None:
        if group not in self._whole:
            self._whole[group] = [self._live.allocate("gathered", weight.numel(), weight.dtype) for weight in weights]

    def _release(self, group: int) -> None:
        self._whole.pop(group, None)

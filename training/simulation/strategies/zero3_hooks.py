"""The hooks on modules by which ZeRO stage 3 fetches and releases weights (deepspeed/runtime/zero/parameter_offload.py)."""

from collections.abc import Callable
from typing import Any, cast

import torch

from training.simulation.strategies.zero3_fetching import Fetching


def add_hooks(fetching: Fetching) -> None:
    """Fetches and releases the weights of each module around its forward and backward pass."""
    for module in fetching.modules:
        _hook(module, fetching)


def _hook(module: torch.nn.Module, fetching: Fetching) -> None:
    """Adds the hooks of a module. As in DeepSpeed, they see positional tensors only: a module whose inputs are all named has no end
    of its backward pass."""
    left = {"before": 0, "after": 0}

    class BeforeBackward(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, output: torch.Tensor) -> torch.Tensor:
            left["before"] += 1
            return output.detach()

        @staticmethod
        def backward(_: Any, *gradients: Any) -> Any:
            if left["before"]:
                fetching.fetch(module, forward=False)
                left["before"] -= 1
            return gradients

    class AfterBackward(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
            left["after"] += value.requires_grad
            return value.detach()

        @staticmethod
        def backward(_: Any, *gradients: Any) -> Any:
            left["after"] -= 1
            if left["after"] == 0:
                fetching.leave(module, forward=False)
            return gradients

    def enter(_: Any, inputs: Any) -> Any:
        fetching.fetch(module, forward=True)
        left["after"] = 0
        return _on_tensors(cast(Any, AfterBackward.apply), inputs)

    def leave(_: Any, __: Any, outputs: Any) -> Any:
        if (saved := fetching.saved(module)) and isinstance(outputs, torch.Tensor) and outputs.grad_fn:
            cast(Any, outputs.grad_fn).metadata["weights"] = saved
        fetching.leave(module, forward=True)
        return _on_tensors(cast(Any, BeforeBackward.apply), outputs)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


def _on_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Applies the function to all tensors in tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        for key in value:
            value[key] = _on_tensors(function, value[key])
    if isinstance(value, tuple | list):
        applied = [_on_tensors(function, one) for one in value]
        return type(value)(*applied) if hasattr(value, "_fields") else type(value)(applied)
    return value

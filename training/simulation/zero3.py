"""Simulates the memory of a rank under DeepSpeed ZeRO, stage 3 (training/simulation/strategies.py)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from deepspeed.runtime.zero.leaf_module_config import DEFAULT_LEAF_MODULE_CLASSES
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from transformers import AutoConfig

from training.config.choices import Quantization
from training.config.run_config import RunConfig
from training.simulation.strategies import Weights, bytes_of, elements
from training.simulation.timeline import Timeline
from training.simulation.zero import DeepSpeed, largest
from training.simulation.zero3_fetching import Fetching


@contextmanager
def linear_layers() -> Iterator[None]:
    """Applies DeepSpeed's linear layer, which keeps its input for the backward pass also if its weight is frozen."""
    plain = torch.nn.functional.linear
    torch.nn.functional.linear = zero3_linear_wrap
    try:
        yield
    finally:
        torch.nn.functional.linear = plain


class Zero3(DeepSpeed):
    """ZeRO stage 3 (deepspeed/runtime/zero/stage3.py): a rank keeps its part of all weights, gradients and optimizer state.

    Only `on_cpu` the model's files are read into the memory that is counted.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        trained: Weights,
        live: Timeline,
        config: RunConfig,
        settings: dict[str, Any],
        *,
        on_cpu: bool,
    ) -> None:
        super().__init__(trained, live, config.num_processes, settings)
        kept = [] if "offload_param" in settings else list(model.parameters())
        self._shards = [live.allocate("weights", -(-weight.numel() // self._ranks), weight.dtype) for weight in kept]
        live.hold(model.buffers(), "weights")
        if on_cpu and config.quantized is Quantization.NONE:
            self._load(model, _file_bytes(model, config))
        dtype, share = trained[0].dtype if trained else torch.float32, -(-elements(trained) // self._ranks)
        self._gradients = None if self._offloaded else live.allocate("gradients", share, dtype)
        self._bucket = live.allocate("buckets", self._bucket_size, dtype)
        self.parameters = [self._master()]
        self._fetching = Fetching(model, live, settings, set(DEFAULT_LEAF_MODULE_CLASSES), recomputes=config.recomputes)
        for module in self._fetching.modules:
            _add_hooks(module, self._fetching)

    def _load(self, model: torch.nn.Module, file_bytes: int) -> None:
        """Each rank reads the whole files, and gathers the weights of one module after another to fill them. Weights that are the
        same, such as those of embeddings and head, are not yet."""
        files = self._live.allocate("other", file_bytes, torch.uint8)
        own = [list(module.parameters(recurse=False)) for module in model.modules()]
        shards = -(-(sum(map(bytes_of, own)) - bytes_of(model.parameters())) // self._ranks)
        tied = self._live.allocate("weights", shards, torch.uint8)
        gathered = self._live.allocate("gathered", max(map(bytes_of, own)), torch.uint8)
        del files, gathered, tied

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        super().on_gradient(weight)
        self._reduce(weight)

    def on_backward_end(self) -> None:
        self._reduce_waiting()
        self._fetching.end_backward()

    def on_step_begin(self) -> None:
        self._fetching.release_all()
        self._make_master_gradient(largest(self._trained) // self._ranks)

    def on_step_end(self) -> None:
        super().on_step_end()
        self._fetching.hold_persistent()


def _file_bytes(model: torch.nn.Module, config: RunConfig) -> int:
    """Bytes of the model's files, which have the format of its config.json; an adapter's weights are not in them."""
    stored = AutoConfig.from_pretrained(config.model, revision=config.revision or "main").dtype or torch.float32
    loaded = [weight for weight in model.parameters() if not (config.method.adapts and weight.requires_grad)]
    return elements(loaded) * stored.itemsize


def _add_hooks(module: torch.nn.Module, fetching: Fetching) -> None:
    """Fetches and releases the weights of a module around its passes (deepspeed/runtime/zero/parameter_offload.py).

    As in DeepSpeed, the hooks see positional tensors only: a module whose inputs are all named has no end of its backward pass.
    """
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

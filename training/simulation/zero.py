"""Simulates the memory of a rank under DeepSpeed ZeRO (training/simulation/strategies.py). DeepSpeed takes seconds to import: only
stage 3 needs it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Any, cast
from unittest.mock import patch

import torch
from transformers import AutoConfig

from training.config.choices import Quantization
from training.config.run_config import RunConfig
from training.simulation.strategies import SimulatedStrategy, Weights, bytes_of, elements
from training.simulation.timeline import Timeline
from training.simulation.zero3_fetching import Fetching


class DeepSpeed(SimulatedStrategy):
    """What all stages have: an fp32 master copy of the rank's part of the trained weights, and gradients larger than the bucket,
    which wait for the next gradient before they are reduced."""

    def __init__(self, trained: Weights, live: Timeline, ranks: int, settings: dict[str, Any]) -> None:
        super().__init__(live)
        self._trained, self._ranks = trained, ranks
        self._bucket_size = int(settings.get("reduce_bucket_size", 5e8))
        self._offloaded = "offload_optimizer" in settings
        self._waiting: torch.nn.Parameter | None = None

    def _master(self) -> torch.nn.Parameter:
        """Returns the master copy, on meta (not counted) if it is offloaded."""
        part = -(-elements(self._trained) // self._ranks)
        if self._offloaded:
            return torch.nn.Parameter(torch.empty(part, device="meta"))
        return torch.nn.Parameter(self._live.allocate("optimizer", part, torch.float32))

    def _reduce(self, weight: torch.nn.Parameter) -> None:
        self._reduce_waiting()
        if weight.numel() > self._bucket_size:
            self._waiting = weight
        else:
            self._keep(weight)

    def _reduce_waiting(self) -> None:
        weight, self._waiting = self._waiting, None
        if weight is not None and weight.grad is not None:
            self._live.allocate("buckets", weight.numel(), weight.dtype)  # DeepSpeed flattens it before reducing
            self._keep(weight)

    def _keep(self, weight: torch.nn.Parameter) -> None:
        """Called when a gradient is reduced; the rank keeps its part in a buffer."""
        weight.grad = None

    def _make_master_gradient(self, largest: int) -> None:
        """Makes the master copy's gradient; before that a copy of each gradient, the `largest` here, in float64 for its norm."""
        (master,) = self.parameters
        if self._offloaded:
            return
        self._live.allocate("gradients", largest, torch.float64)
        dtype = self._trained[0].dtype
        flat = None if dtype is torch.float32 else self._live.allocate("gradients", master.numel(), dtype)
        master.grad = self._live.allocate("gradients", master.numel(), torch.float32)
        del flat


class Zero(DeepSpeed):
    """ZeRO stages 0 to 2 (deepspeed/runtime/zero/stage_1_and_2.py), of the rank that keeps the most gradients or, with `last`, of
    the last one, which keeps its gradients for the longest.

    A rank keeps all weights, and for its 1/ranks of the trained ones an fp32 master copy with optimizer state. Gradients up to
    the bucket size are copied into a bucket, larger ones wait for the next gradient; a rank keeps those of all weights that its
    part touches in one buffer. Over `micro_steps` stage 2 adds up these buffers, stage 1 all gradients.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        trained: Weights,
        live: Timeline,
        ranks: int,
        settings: dict[str, Any],
        micro_steps: int = 1,
        *,
        last: bool = False,
    ) -> None:
        super().__init__(trained, live, ranks, settings)
        live.hold(model, "weights")
        self._stage, self._micro_steps, self._micro_step = int(settings["stage"]), micro_steps, 0
        # The Trainer's two groups: norms and biases have no weight decay. Each is divided by itself.
        groups = [[one for one in trained if (one.ndim > 1) is matrices] for matrices in (True, False)]
        parts = [[*chain(*(_touched(one, rank, ranks) for one in groups))] for rank in range(ranks)]
        owned = parts[-1] if last else max(parts, key=self._kept)
        self._owned, self._owned_elements = {id(weight) for weight in owned}, elements(owned)
        self.parameters = [self._master()]
        self._buckets: list[torch.Tensor] = []
        self._partition: torch.Tensor | None = None
        self._accumulated: torch.Tensor | None = None

    def _kept(self, owned: Weights) -> int:
        """Returns the elements of the gradients that a rank with these weights keeps until that of the embedding, the first weight:
        in stage 1 also those larger than a bucket."""
        own = {id(weight) for weight in owned}
        large = (weight for weight in self._trained[1:] if id(weight) not in own and weight.numel() > self._bucket_size)
        return elements(owned) + (elements(large) if self._stage == 1 and self._micro_steps == 1 else 0)

    @property
    def _reduces(self) -> bool:
        """True if this micro step reduces gradients."""
        return self._stage == 2 or self._micro_step == self._micro_steps - 1

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        super().on_gradient(weight)
        if not self._reduces:
            return
        if not self._buckets:
            self._buckets = [self._live.allocate("buckets", self._bucket_size, weight.dtype) for _ in range(2)]
        self._reduce(weight)

    def _keep(self, weight: torch.nn.Parameter) -> None:
        if id(weight) in self._owned and not self._offloaded and self._partition is None:
            self._partition = self._live.allocate("gradients", self._owned_elements, weight.dtype)
        if self._stage == 2 or id(weight) in self._owned or weight.numel() <= self._bucket_size:
            weight.grad = None

    def on_backward_end(self) -> None:
        self._reduce_waiting()
        self._buckets = []
        if self._reduces:
            for weight in self._trained:
                weight.grad = None
        if self._accumulated is None:
            self._accumulated = self._partition
        self._partition = None
        self._micro_step += 1

    def on_step_begin(self) -> None:
        (master,) = self.parameters
        self._make_master_gradient(min(largest(self._trained), master.numel()))
        self._micro_step = 0

    def on_step_end(self) -> None:
        super().on_step_end()
        self._accumulated = None


def largest(weights: Weights) -> int:
    return max((weight.numel() for weight in weights), default=0)


def _touched(weights: Weights, rank: int, ranks: int) -> Weights:
    """Returns the weights with elements in the rank's part of all."""
    share = elements(weights) / ranks
    ends = list(accumulate(weight.numel() for weight in weights))
    places = zip(weights, [0, *ends], ends, strict=False)
    return [weight for weight, first, end in places if end > rank * share and first < (rank + 1) * share]


@contextmanager
def linear_layers() -> Iterator[None]:
    """Applies DeepSpeed's linear layer, which keeps its input for the backward pass also if its weight is frozen."""
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    with patch.object(torch.nn.functional, "linear", zero3_linear_wrap):
        yield


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
        from deepspeed.runtime.zero.leaf_module_config import DEFAULT_LEAF_MODULE_CLASSES

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

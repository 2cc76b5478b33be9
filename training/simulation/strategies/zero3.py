"""Simulates the memory of a rank under DeepSpeed ZeRO, stage 3 (training/simulation/strategies/strategy.py)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.runtime.zero.leaf_module_config import DEFAULT_LEAF_MODULE_CLASSES
from deepspeed.runtime.zero.linear import zero3_linear_wrap

from training.simulation.strategies.strategy import Weights, bytes_of, elements
from training.simulation.strategies.zero import NORM, largest
from training.simulation.strategies.zero3_fetching import Fetching
from training.simulation.strategies.zero3_hooks import add_hooks
from training.simulation.timeline import Timeline


@contextmanager
def linear_layers() -> Iterator[None]:
    """Applies DeepSpeed's linear layer, which keeps its input for the backward pass also if its weight is frozen."""
    plain = torch.nn.functional.linear
    torch.nn.functional.linear = zero3_linear_wrap
    try:
        yield
    finally:
        torch.nn.functional.linear = plain


class Zero3:
    """ZeRO stage 3 (deepspeed/runtime/zero/stage3.py): a rank keeps its part of all weights, gradients and optimizer state.

    `file_bytes` are those of the model's files if they are read into the memory that is counted.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        trained: Weights,
        live: Timeline,
        ranks: int,
        settings: dict[str, Any],
        file_bytes: int,
        *,
        recomputes: bool,
    ) -> None:
        self._live, self._trained, self._ranks = live, trained, ranks
        weights = list(model.parameters())
        self._bucket_size = int(settings["reduce_bucket_size"])
        kept = [] if "offload_param" in settings else weights
        self._shards = [live.allocate("weights", -(-weight.numel() // ranks), weight.dtype) for weight in kept]
        live.hold(model.buffers(), "weights")
        self._load(model, file_bytes)
        dtype = trained[0].dtype if trained else torch.float32
        offloaded, share = "offload_optimizer" in settings, -(-elements(trained) // ranks)
        self._gradients = None if offloaded else live.allocate("gradients", share, dtype)
        self._bucket = live.allocate("buckets", self._bucket_size, dtype)
        master = torch.empty(share, device="meta") if offloaded else live.allocate("optimizer", share, torch.float32)
        self.parameters = [torch.nn.Parameter(master)]
        self._waiting: torch.nn.Parameter | None = None
        self._fetching = Fetching(model, live, settings, set(DEFAULT_LEAF_MODULE_CLASSES), recomputes=recomputes)
        add_hooks(self._fetching)

    def _load(self, model: torch.nn.Module, file_bytes: int) -> None:
        """Each rank reads the whole files, and gathers the weights of one module after another to fill them. Weights that are the
        same, such as those of embeddings and head, are not yet."""
        if file_bytes:
            files = self._live.allocate("other", file_bytes, torch.uint8)
            own = [list(module.parameters(recurse=False)) for module in model.modules()]
            shards = -(-(sum(map(bytes_of, own)) - bytes_of(model.parameters())) // self._ranks)
            tied = self._live.allocate("weights", shards, torch.uint8)
            gathered = self._live.allocate("gathered", max(map(bytes_of, own)), torch.uint8)
            del files, gathered, tied

    def enter(self, module: str, phase: str) -> None:
        pass

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")
        self._reduce_waiting()
        if weight.numel() > self._bucket_size:
            self._waiting = weight
        else:
            weight.grad = None

    def _reduce_waiting(self) -> None:
        weight, self._waiting = self._waiting, None
        if weight is not None and weight.grad is not None:
            self._live.allocate("buckets", weight.numel(), weight.dtype)
            weight.grad = None

    def on_backward_end(self) -> None:
        self._reduce_waiting()
        self._fetching.end_backward()

    def on_step_begin(self) -> None:
        self._fetching.release_all()
        (master,) = self.parameters
        if not master.is_meta:
            self._live.allocate("gradients", largest(self._trained) // self._ranks, NORM)
            dtype = self._trained[0].dtype
            flat = None if dtype is torch.float32 else self._live.allocate("gradients", master.numel(), dtype)
            master.grad = self._live.allocate("gradients", master.numel(), torch.float32)
            del flat

    def on_step_end(self) -> None:
        self.parameters[0].grad = None
        self._fetching.hold_persistent()

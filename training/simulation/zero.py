"""Simulates the memory of a rank under DeepSpeed ZeRO (training/simulation/strategy.py)."""

import itertools
from typing import Any

import torch

from training.simulation.strategy import Gathering, Weights, elements
from training.simulation.timeline import Timeline


class Zero:
    """ZeRO stages 0 to 2 (deepspeed/runtime/zero/stage_1_and_2.py).

    A rank keeps all weights, and for its 1/ranks of the trained ones an fp32 master copy with optimizer state. Gradients up to
    the bucket size are copied into a bucket, larger ones wait for the next gradient; a rank keeps its own part in one buffer.
    """

    def __init__(
        self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int, settings: dict[str, Any]
    ) -> None:
        live.hold(model, "weights")
        self._trained, self._live, self._settings = trained, live, settings
        self._stage = int(settings["stage"])
        self._bucket_size = int(settings.get("reduce_bucket_size", 5e8))
        first = elements(trained) * (ranks - 1) // ranks
        ends = itertools.accumulate(weight.numel() for weight in trained)
        self._owned = {id(weight) for weight, end in zip(trained, ends, strict=True) if end > first}
        self._offloaded = "offload_optimizer" in settings
        self.parameters = [self._master(elements(trained) - first)]
        self._buckets: list[torch.Tensor] = []
        self._partition: torch.Tensor | None = None
        self._waiting: torch.nn.Parameter | None = None

    def _master(self, elements: int) -> torch.nn.Parameter:
        """Returns the master copy, on meta (not counted) if it is offloaded."""
        if self._offloaded:
            return torch.nn.Parameter(torch.empty(elements, device="meta"))
        return torch.nn.Parameter(self._live.allocate("optimizer", elements, torch.float32))

    def enter(self, module: str, phase: str) -> None:
        pass

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")
        if not self._buckets:
            self._buckets = [self._live.allocate("buckets", self._bucket_size, weight.dtype) for _ in range(2)]
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
        if id(weight) in self._owned and not self._offloaded and self._partition is None:
            owned = sum(weight.numel() for weight in self._trained if id(weight) in self._owned)
            self._partition = self._live.allocate("gradients", owned, weight.dtype)
        if self._stage == 2 or id(weight) in self._owned or weight.numel() <= self._bucket_size:
            weight.grad = None

    def on_backward_end(self) -> None:
        self._reduce_waiting()
        self._buckets = []
        for weight in self._trained:
            weight.grad = None

    def on_step_begin(self) -> None:
        (master,) = self.parameters
        if not self._offloaded:
            dtype = self._trained[0].dtype
            flat = None if dtype is torch.float32 else self._live.allocate("gradients", master.numel(), dtype)
            master.grad = self._live.allocate("gradients", master.numel(), torch.float32)
            del flat
        self._partition = None

    def on_step_end(self) -> None:
        self.parameters[0].grad = None


class Zero3(Gathering):
    """ZeRO stage 3 (deepspeed/runtime/zero/stage3.py, partitioned_param_coordinator.py), after it has recorded its trace.

    Small weights stay whole. Others are gathered for their module, and kept until the backward pass if at most
    stage3_max_reuse_distance elements are used in between. With an adapter, measurements show another behavior: all weights
    that fit into stage3_max_live_parameters are gathered when the forward pass begins, and each is released after its use.
    """

    def __init__(
        self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int, settings: dict[str, Any]
    ) -> None:
        super().__init__(model, live)
        self._trained, self._settings = trained, settings
        weights = list(model.parameters())
        small = int(settings["stage3_param_persistence_threshold"])
        self._persistent = {id(weight) for weight in weights if weight.numel() <= small}
        self._bucket_size = int(settings["reduce_bucket_size"])
        share = -(-elements(trained) // ranks)
        whole = [weight for weight in weights if id(weight) in self._persistent]
        sizes = (
            [] if "offload_param" in settings else [(-(-weight.numel() // ranks), weight.dtype) for weight in weights]
        )
        sizes += [(weight.numel(), weight.dtype) for weight in whole]
        self._shards = [live.allocate("weights", size, dtype) for size, dtype in sizes]
        live.hold(model.buffers(), "weights")
        dtype = trained[0].dtype if trained else torch.float32
        offloaded = "offload_optimizer" in settings
        self._gradients = None if offloaded else live.allocate("gradients", share, dtype)
        self._bucket = live.allocate("buckets", self._bucket_size, dtype)
        master = torch.empty(share, device="meta") if offloaded else live.allocate("optimizer", share, torch.float32)
        self.parameters = [torch.nn.Parameter(master)]
        self._waiting: torch.nn.Parameter | None = None
        self._own = {
            name: [weight for weight in module.parameters(recurse=False) if id(weight) not in self._persistent]
            for name, module in model.named_modules()
        }
        self._order: dict[str, int] = {}  # elements used before a module, in the order of the first forward pass
        self._used = 0
        self._at_start, self._has_adapter = True, len(trained) < len(weights)
        self._embeddings = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)}

    def enter(self, module: str, phase: str) -> None:
        weights = self._own.get(module, [])
        if phase == "forward" and module not in self._order:
            self._order[module] = self._used
            self._used += elements(weights)
        if phase == "forward" and self._at_start:
            self._at_start = False
            if self._has_adapter and self._used <= self._settings["stage3_max_live_parameters"]:
                for weight in itertools.chain.from_iterable(self._own[name] for name in self._order):
                    self._gather(id(weight), [weight])
        elif phase == "forward":
            place = self._order[module]
            for name, before in self._order.items():
                far = self._has_adapter or 2 * (self._used - before) > self._settings["stage3_max_reuse_distance"]
                if before < place and name != module and (name in self._embeddings or far):
                    self._drop(name, keep=weights)
        else:
            for name, place in self._order.items():
                if place > self._order.get(module, place):
                    self._drop(name, keep=weights)
        for weight in weights:
            self._gather(id(weight), [weight])

    def _drop(self, name: str, keep: Weights) -> None:
        kept = {id(weight) for weight in keep}
        for weight in self._own[name]:
            if id(weight) not in kept:
                self._release(id(weight))

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
        self._whole, self._at_start = {}, True

    def on_step_begin(self) -> None:
        (master,) = self.parameters
        if not master.is_meta:
            master.grad = self._live.allocate("gradients", master.numel(), torch.float32)

    def on_step_end(self) -> None:
        self.parameters[0].grad = None

"""ZeRO's part of a rank's memory, played on fake tensors (training/shared_memory.py)."""

import itertools
from typing import Any

import torch

from training.live_timeline import Timeline
from training.shared_memory import Gathering, Weights, elements


class Zero:
    """ZeRO stages 0 to 2 (deepspeed/runtime/zero/stage_1_and_2.py).

    A rank keeps all weights, and of the trained ones 1/ranks as a master copy in fp32 with its optimizer's state. Gradients up to
    the bucket's size are copied into a bucket, larger ones wait for the next gradient; what the rank owns is kept in one buffer.
    """

    def __init__(
        self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int, settings: dict[str, Any]
    ) -> None:
        live.hold(model, "weights")
        self._trained, self._live, self._settings = trained, live, settings
        self._stage = int(settings["stage"])
        self._bucket_size = int(settings.get("reduce_bucket_size", 5e8))
        first = elements(trained) * (ranks - 1) // ranks
        ends = itertools.accumulate(one.numel() for one in trained)
        self._owned = {id(one) for one, end in zip(trained, ends, strict=True) if end > first}
        self._offloaded = "offload_optimizer" in settings
        self.parameters = [self._master(elements(trained) - first)]
        self._buckets: list[torch.Tensor] = []
        self._partition: torch.Tensor | None = None
        self._waiting: torch.nn.Parameter | None = None

    def _master(self, elements: int) -> torch.nn.Parameter:
        """On meta where it is offloaded, which counts nothing."""
        if self._offloaded:
            return torch.nn.Parameter(torch.empty(elements, device="meta"))
        return torch.nn.Parameter(self._live.allot("optimizer", elements, torch.float32))

    def enter(self, module: str, phase: str) -> None:
        pass

    def accumulated(self, weight: torch.nn.Parameter) -> None:
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")
        if not self._buckets:
            self._buckets = [self._live.allot("buckets", self._bucket_size, weight.dtype) for _ in range(2)]
        self._reduce_waiting()
        if weight.numel() > self._bucket_size:
            self._waiting = weight
        else:
            self._keep(weight)

    def _reduce_waiting(self) -> None:
        weight, self._waiting = self._waiting, None
        if weight is not None and weight.grad is not None:
            self._live.allot("buckets", weight.numel(), weight.dtype)  # what is reduced is flattened first
            self._keep(weight)

    def _keep(self, weight: torch.nn.Parameter) -> None:
        if id(weight) in self._owned and not self._offloaded and self._partition is None:
            owned = sum(one.numel() for one in self._trained if id(one) in self._owned)
            self._partition = self._live.allot("gradients", owned, weight.dtype)
        if self._stage == 2 or id(weight) in self._owned or weight.numel() <= self._bucket_size:
            weight.grad = None

    def backward_ends(self) -> None:
        self._reduce_waiting()
        self._buckets = []
        for weight in self._trained:
            weight.grad = None

    def step_begins(self) -> None:
        (master,) = self.parameters
        if not self._offloaded:
            form = self._trained[0].dtype
            flat = None if form is torch.float32 else self._live.allot("gradients", master.numel(), form)
            master.grad = self._live.allot("gradients", master.numel(), torch.float32)
            del flat
        self._partition = None

    def step_ends(self) -> None:
        self.parameters[0].grad = None


class Zero3(Gathering):
    """ZeRO stage 3 (deepspeed/runtime/zero/stage3.py, partitioned_param_coordinator.py), once its trace is known.

    Small weights stay whole. Others are gathered for their module, and kept until the backward pass where not more elements than
    stage3_max_reuse_distance are used in between. Beside an adapter it was measured otherwise: all that fits into
    stage3_max_live_parameters is gathered ahead as the forward pass begins, and each weight given back after its use.
    """

    def __init__(
        self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int, settings: dict[str, Any]
    ) -> None:
        super().__init__(model, live)
        self._trained, self._settings = trained, settings
        every = list(model.parameters())
        small = int(settings["stage3_param_persistence_threshold"])
        self._persistent = {id(one) for one in every if one.numel() <= small}
        self._bucket_size = int(settings["reduce_bucket_size"])
        share = -(-elements(trained) // ranks)
        kept = [one for one in every if id(one) in self._persistent]
        sizes = [] if "offload_param" in settings else [(-(-one.numel() // ranks), one.dtype) for one in every]
        sizes += [(one.numel(), one.dtype) for one in kept]
        self._shards = [live.allot("weights", size, dtype) for size, dtype in sizes]
        live.hold(model.buffers(), "weights")
        form = trained[0].dtype if trained else torch.float32
        offloaded = "offload_optimizer" in settings
        self._gradients = None if offloaded else live.allot("gradients", share, form)
        self._bucket = live.allot("buckets", self._bucket_size, form)
        master = torch.empty(share, device="meta") if offloaded else live.allot("optimizer", share, torch.float32)
        self.parameters = [torch.nn.Parameter(master)]
        self._waiting: torch.nn.Parameter | None = None
        self._own = {
            name: [one for one in module.parameters(recurse=False) if id(one) not in self._persistent]
            for name, module in model.named_modules()
        }
        self._order: dict[str, int] = {}  # elements used before a module, in the order of the first forward pass
        self._used = 0
        self._begins, self._adapts = True, len(trained) < len(every)
        self._embeddings = {name for name, one in model.named_modules() if isinstance(one, torch.nn.Embedding)}

    def enter(self, module: str, phase: str) -> None:
        weights = self._own.get(module, [])
        if phase == "forward" and module not in self._order:
            self._order[module] = self._used
            self._used += elements(weights)
        if phase == "forward" and self._begins:
            self._begins = False
            if self._adapts and self._used <= self._settings["stage3_max_live_parameters"]:
                for one in itertools.chain.from_iterable(self._own[name] for name in self._order):
                    self._gather(id(one), [one])
        elif phase == "forward":
            place = self._order[module]
            for name, before in self._order.items():
                far = self._adapts or 2 * (self._used - before) > self._settings["stage3_max_reuse_distance"]
                if before < place and name != module and (name in self._embeddings or far):
                    self._drop(name, keep=weights)
        else:
            for name, place in self._order.items():
                if place > self._order.get(module, place):
                    self._drop(name, keep=weights)
        for one in weights:
            self._gather(id(one), [one])

    def _drop(self, name: str, keep: Weights) -> None:
        kept = {id(one) for one in keep}
        for one in self._own[name]:
            if id(one) not in kept:
                self._release(id(one))

    def accumulated(self, weight: torch.nn.Parameter) -> None:
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
            self._live.allot("buckets", weight.numel(), weight.dtype)
            weight.grad = None

    def backward_ends(self) -> None:
        self._reduce_waiting()
        self._whole, self._begins = {}, True

    def step_begins(self) -> None:
        (master,) = self.parameters
        if not master.is_meta:
            master.grad = self._live.allot("gradients", master.numel(), torch.float32)

    def step_ends(self) -> None:
        self.parameters[0].grad = None

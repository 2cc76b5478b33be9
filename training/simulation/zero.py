"""Simulates the memory of a rank under DeepSpeed ZeRO, stages 0 to 2 (training/simulation/strategies.py)."""

from itertools import accumulate, chain
from typing import Any

import torch

from training.simulation.strategies import SimulatedStrategy, Weights, elements
from training.simulation.timeline import Timeline


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

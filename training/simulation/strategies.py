"""Simulates what a strategy allocates and frees on one rank, with fake tensors, during a step of the whole model: one device, DDP
and FSDP; ZeRO is in training/simulation/zero.py.

Each class follows the source of torch or DeepSpeed and was checked against measured runs (benchmarks/forecast/command.py).
"""

from collections.abc import Iterable
from typing import Any

import torch

from training.config.choices import Offload, Precision, Strategy
from training.config.run_config import RunConfig
from training.simulation.timeline import Timeline
from training.trainer.tied_weights import ties_behind_wrapper

Weights = list[torch.nn.Parameter]

_BROADCAST_BYTES = 250 * 2**20  # DDP's buffer to broadcast rank 0's weights (torch/nn/parallel/distributed.py)


class SimulatedStrategy:
    """One rank's part of a model. `parameters` are those of its optimizer."""

    parameters: Weights

    def __init__(self, live: Timeline) -> None:
        self._live = live

    def enter(self, module: str, phase: str) -> None:
        """Called when the forward or backward pass enters a module."""

    def on_gradient(self, weight: torch.nn.Parameter) -> None:
        """Called when a weight's gradient is complete."""
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")

    def on_backward_end(self) -> None:
        """Called after each backward pass."""

    def on_step_begin(self) -> None:
        """Called before the optimizer's step."""

    def on_step_end(self) -> None:
        """Called after the optimizer's step."""
        for weight in self.parameters:
            weight.grad = None


class Unsharded(SimulatedStrategy):
    """A single device, or DDP, whose buckets hold a second copy of the gradients (torch/csrc/distributed/c10d/reducer.cpp)."""

    def __init__(self, model: torch.nn.Module, trained: Weights, live: Timeline, ranks: int) -> None:
        super().__init__(live)
        live.hold(model, "weights")
        self.parameters = trained
        if ranks > 1:
            live.allocate("buckets", min(bytes_of(model.parameters()), _BROADCAST_BYTES), torch.uint8)  # freed at once
            self._buckets = [live.allocate("buckets", weight.numel(), weight.dtype) for weight in trained]


class Fsdp(SimulatedStrategy):
    """FSDP2 with accelerate's groups (torch/distributed/fsdp/_fully_shard): each layer, the head with the last norm, the rest.

    FSDP gathers a group into a buffer and copies the weights out of it. In the forward pass the buffer lives until the next group
    is copied. In the backward pass FSDP gathers the next group ahead, and copies a group's gradients into a reduce buffer in the
    format of the shards, which lives until that of the next group.
    """

    def __init__(
        self, model: Any, trained: Weights, live: Timeline, config: RunConfig, precision: Precision, *, on_cpu: bool
    ) -> None:
        super().__init__(live)
        self._ranks, self._rounds = config.num_processes, precision is not Precision.FP32
        self._groups, self._group_of = _fsdp_groups(model)
        self._tied = _ties(model)
        self._offloaded = config.offload_param is Offload.CPU
        # Shards are made from whole weights, which with a GPU stay on the host.
        whole = live.allocate("weights", bytes_of(model.parameters()) if on_cpu else 0, torch.uint8)
        self._frozen = [self._shard(weight) for weight in model.parameters() if not weight.requires_grad]
        self.parameters = [torch.nn.Parameter(self._shard(weight)) for weight in trained]
        live.hold(model.buffers(), "weights")
        del whole
        self._sharded = dict(zip(map(id, trained), self.parameters, strict=True))
        self._reducing: list[torch.Tensor] = []
        self._whole: dict[int, list[torch.Tensor]] = {}
        self._ahead: dict[int, torch.Tensor] = {}
        self._copied: torch.Tensor | None = None
        self._current: int | None = None
        self._phase = ""
        model.register_forward_hook(lambda *_: self._end_forward())

    def _shard(self, weight: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if self._rounds and weight.requires_grad else weight.dtype
        rows = weight.shape[0] if weight.ndim else 1
        size = -(-rows // self._ranks) * (weight.numel() // max(rows, 1))
        if self._offloaded:
            return torch.empty(size, dtype=dtype, device="meta")
        return self._live.allocate("weights", size, dtype)

    def _end_forward(self) -> None:
        """Frees the buffer of the last group, after the model's own loss and before one in chunks."""
        self._copied = None

    def enter(self, module: str, phase: str) -> None:
        group = self._group_of.get(module)
        if not group and not self._groups[0]:
            return  # the module is in no group
        if group is None or (group == self._current and phase == self._phase):
            return
        if self._current is not None and self._current != group:
            self._exit(self._current, phase)
        if phase == "backward":
            self._copied = None
        self._current, self._phase = group, phase
        self._unshard(group)
        if phase == "backward" and group > 1:
            self._gather_ahead(group - 1)

    def _exit(self, group: int, phase: str) -> None:
        last = len(self._groups) - 1
        if group == last and self._tied and phase == "backward":
            return  # its first module, the embeddings, has no input with a gradient, whose hook would end the group earlier
        stays = group in (0, last) and phase == "forward"
        if not stays:
            self._whole.pop(group, None)
        if phase == "backward":
            self._reduce(group)

    def _unshard(self, group: int) -> None:
        if group in self._whole:
            return
        if group not in self._ahead:
            self._gather_ahead(group)
        weights = self._groups[group]
        self._whole[group] = [self._live.allocate("gathered", weight.numel(), weight.dtype) for weight in weights]
        buffer = self._ahead.pop(group, None)
        self._copied = buffer if self._phase == "forward" else None

    def _gather_ahead(self, group: int) -> None:
        if group not in self._whole:
            form = self._groups[group][0].dtype
            self._ahead[group] = self._live.allocate("gathered", elements(self._groups[group]), form)

    def _reduce(self, group: int) -> None:
        ready = [weight for weight in self._groups[group] if weight.grad is not None]
        if not ready:
            return
        self._reducing = []
        form = self._sharded[id(ready[0])].dtype
        self._reducing = [self._live.allocate("buckets", elements(ready), form)]
        copy = self._live.allocate("buckets", elements(ready), form)
        accumulated = [shard for weight in ready if (shard := self._sharded[id(weight)]).grad is not None]
        reduced = self._live.allocate("buckets", elements(accumulated), form)
        for weight in ready:
            shard = self._sharded[id(weight)]
            if shard.grad is None:
                shard.grad = (
                    torch.empty_like(shard)
                    if shard.is_meta
                    else self._live.allocate("gradients", shard.numel(), shard.dtype)
                )
        del copy, reduced
        for weight in ready:
            weight.grad = None

    def on_backward_end(self) -> None:
        for group in range(len(self._groups)):
            self._whole.pop(group, None)
            self._reduce(group)
        self._whole, self._ahead, self._reducing, self._current, self._phase = {}, {}, [], None, ""


def _ties(model: Any) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = base.get_output_embeddings()
    return head is not None and base.get_input_embeddings().weight is head.weight


def _fsdp_groups(model: Any) -> tuple[list[Weights], dict[str, int]]:
    """Returns the weights of each group (0: those in no other group; then in model order), and the group of each module."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    classes = set(base._no_split_modules or ())
    layers = [[module] for module in model.modules() if type(module).__name__ in classes]
    embeddings, head, tied = base.get_input_embeddings(), base.get_output_embeddings(), _ties(model)
    norms = [module for module in base.base_model.children() if "Norm" in type(module).__name__][-1:]
    if ties_behind_wrapper(base):  # see `kept_tied`
        units = [*layers, norms]
    else:
        units = [
            *([] if tied else [[embeddings]]),
            *layers,
            [*norms, *([embeddings] if tied else []), *([head] if head else [])],
        ]
    inside = {id(part): number + 1 for number, unit in enumerate(units) for module in unit for part in module.modules()}
    group_of = {name: inside.get(id(module), 0) for name, module in model.named_modules()}
    groups: list[Weights] = [[] for _ in range(len(units) + 1)]
    grouped: set[int] = set()
    for name, module in model.named_modules():
        for weight in module.parameters(recurse=False):
            if id(weight) not in grouped:
                grouped.add(id(weight))
                groups[group_of[name]].append(weight)
    return groups, group_of


def shards(config: RunConfig) -> bool:
    """True if each rank keeps only a part of the weights."""
    return config.strategy is Strategy.ZERO3 or (config.strategy is Strategy.FSDP and config.num_processes > 1)


def elements(weights: Iterable[torch.Tensor]) -> int:
    """Returns the total number of elements."""
    return sum(weight.numel() for weight in weights)


def bytes_of(weights: Iterable[torch.Tensor]) -> int:
    """Returns the total size in bytes."""
    return sum(weight.numel() * weight.element_size() for weight in weights)

"""FSDP's part of a rank's memory, played on fake tensors (training/shared_memory.py)."""

from typing import Any

import torch

from training.config import Offload, Precision, RunConfig
from training.live_timeline import Timeline
from training.shared_memory import Gathering, Weights, bytes_of, elements


class Fsdp(Gathering):
    """FSDP2 as accelerate groups it (torch/distributed/fsdp/_fully_shard): each layer, the head with the last norm, all else.

    A group is gathered into a buffer and copied out of it. In the backward pass the next is gathered ahead, and a group's gradients
    are copied into a buffer to be reduced, which lives until the next group's.
    """

    def __init__(
        self, model: Any, trained: Weights, live: Timeline, config: RunConfig, precision: Precision, *, on_cpu: bool
    ) -> None:
        super().__init__(model, live)
        self._ranks, self._rounds = config.num_processes, precision is not Precision.FP32
        self._groups, self._group_of = _fsdp_groups(model)
        self._offloaded = config.offload_param is Offload.CPU
        # They are cut from whole weights, which on a GPU's machine stay on the host.
        whole = live.allot("weights", bytes_of(model.parameters()) if on_cpu else 0, torch.uint8)
        self._frozen = [self._shard(one) for one in model.parameters() if not one.requires_grad]
        self.parameters = [torch.nn.Parameter(self._shard(one)) for one in trained]
        live.hold(model.buffers(), "weights")
        del whole
        self._sharded = dict(zip(map(id, trained), self.parameters, strict=True))
        self._reducing: list[torch.Tensor] = []
        self._ahead: dict[int, torch.Tensor] = {}
        self._current: int | None = None
        self._phase = ""

    def _shard(self, weight: torch.Tensor) -> torch.Tensor:
        whole = torch.float32 if self._rounds and weight.requires_grad else weight.dtype
        rows = weight.shape[0] if weight.ndim else 1
        size = -(-rows // self._ranks) * (weight.numel() // max(rows, 1))
        if self._offloaded:
            return torch.empty(size, dtype=whole, device="meta")
        return self._live.allot("weights", size, whole)

    def enter(self, module: str, phase: str) -> None:
        group = self._group_of.get(module)
        if not group and not self._groups[0]:
            return  # nothing of its own
        if group is None or (group == self._current and phase == self._phase):
            return
        if self._current is not None and self._current != group:
            self._leave(self._current, phase)
        self._current, self._phase = group, phase
        self._unshard(group)
        if phase == "backward" and group > 1:
            self._gather_ahead(group - 1)

    def _leave(self, group: int, phase: str) -> None:
        stays = group in (0, len(self._groups) - 1) and phase == "forward"
        if not stays:
            self._release(group)
        if phase == "backward":
            self._reduce(group)

    def _unshard(self, group: int) -> None:
        if group in self._whole:
            return
        if group not in self._ahead:
            self._gather_ahead(group)
        weights = self._groups[group]
        self._whole[group] = [self._live.allot("gathered", one.numel(), one.dtype) for one in weights]
        self._ahead.pop(group, None)

    def _gather_ahead(self, group: int) -> None:
        if group not in self._whole:
            form = self._groups[group][0].dtype
            self._ahead[group] = self._live.allot("gathered", elements(self._groups[group]), form)

    def accumulated(self, weight: torch.nn.Parameter) -> None:
        assert weight.grad is not None
        self._live.hold([weight.grad], "gradients")

    def _reduce(self, group: int) -> None:
        ready = [one for one in self._groups[group] if one.grad is not None]
        if not ready:
            return
        self._reducing = []
        self._reducing = [self._live.allot("buckets", elements(ready), torch.float32)]
        copy = self._live.allot("buckets", elements(ready), torch.float32)
        for one in ready:
            shard = self._sharded[id(one)]
            if shard.grad is None:
                shard.grad = (
                    torch.empty_like(shard)
                    if shard.is_meta
                    else self._live.allot("gradients", shard.numel(), torch.float32)
                )
        del copy
        for one in ready:
            one.grad = None

    def backward_ends(self) -> None:
        for group in range(len(self._groups)):
            self._reduce(group)
        self._whole, self._ahead, self._reducing, self._current, self._phase = {}, {}, [], None, ""

    def step_begins(self) -> None:
        pass

    def step_ends(self) -> None:
        for one in self.parameters:
            one.grad = None


def _fsdp_groups(model: Any) -> tuple[list[Weights], dict[str, int]]:
    """The groups' weights, what is in no other first, then in the order of the model; and the group of each module."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    classes = set(base._no_split_modules or ())
    layers = [[one] for one in model.modules() if type(one).__name__ in classes]
    read, head = base.get_input_embeddings(), base.get_output_embeddings()
    norms = [one for one in base.base_model.children() if "Norm" in type(one).__name__][-1:]
    tied = head is not None and read.weight is head.weight
    units = [*([] if tied else [[read]]), *layers, [*norms, *([read] if tied else []), *([head] if head else [])]]
    inside = {id(part): place + 1 for place, unit in enumerate(units) for one in unit for part in one.modules()}
    group_of = {name: inside.get(id(module), 0) for name, module in model.named_modules()}
    groups: list[Weights] = [[] for _ in range(len(units) + 1)]
    known: set[int] = set()
    for name, module in model.named_modules():
        for one in module.parameters(recurse=False):
            if id(one) not in known:
                known.add(id(one))
                groups[group_of[name]].append(one)
    return groups, group_of

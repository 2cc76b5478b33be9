"""Simulates which weights a rank of ZeRO stage 3 holds whole, during passes of the whole model.

Follows deepspeed/runtime/zero/partitioned_param_coordinator.py (fetching, prefetching, releasing):
in the first pass weights are released after each module and the order of modules is recorded; from the second on weights are
fetched ahead in that order, and kept if they are used again soon.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from training.simulation.timeline import Timeline

Weight = torch.nn.Parameter

_EXPERTS = 3
"""Dimensions of a weight that holds all experts."""


class _Handle:
    """Weights gathered in one collective: one weight in a buffer of its own, several in a flat one, which is copied from when the
    first of them is needed and lives until the last one is."""

    def __init__(self, weights: list[Weight], live: Timeline) -> None:
        self._weights, self._live = weights, live
        sizes: dict[torch.dtype, int] = defaultdict(int)
        for weight in weights:
            sizes[weight.dtype] += weight.numel()
        self._flat = [live.allocate("gathered", size, dtype) for dtype, size in sizes.items()]

    def wait(self, whole: dict[Weight, torch.Tensor | None]) -> None:
        if len(self._weights) == 1:
            whole[self._weights[0]], self._flat = self._flat[0], []
            return
        for weight in self._weights:
            if weight not in whole:
                whole[weight] = self._live.allocate("gathered", weight.numel(), weight.dtype)


class Fetching:
    """The weights of `model` that live whole. `_persistent` ones are kept once there is a trace.

    Weights in `_coming` are in flight or wait in a collective's buffer, those in `_whole` are available.
    """

    def __init__(
        self, model: torch.nn.Module, live: Timeline, settings: dict[str, Any], leaves: set[str], *, recomputes: bool
    ) -> None:
        self._recomputes = recomputes
        self._live, self._reuse = live, int(settings["stage3_max_reuse_distance"])
        self._most, self._ahead = (
            int(settings["stage3_max_live_parameters"]),
            int(settings["stage3_prefetch_bucket_size"]),
        )
        small = int(settings["stage3_param_persistence_threshold"])
        self._number = {weight: number for number, weight in enumerate(model.parameters())}
        self._persistent = {weight for weight in self._number if weight.numel() <= small}
        self._own = dict(_own_weights(model, leaves))
        self._elements = {module: sum(weight.numel() for weight in own) for module, own in self._own.items()}
        self._whole: dict[Weight, torch.Tensor | None] = {}
        self._coming: dict[Weight, _Handle] = {}
        self._users: dict[Weight, set[torch.nn.Module]] = defaultdict(set)
        self._recomputed: dict[torch.nn.Module, set[Weight]] = defaultdict(set)
        self._backward: dict[torch.nn.Module, None] = {}
        self._order: list[torch.nn.Module] = []
        self._releases: dict[tuple[torch.nn.Module, int], set[Weight]] = {}
        self._passes = 0
        self._queue: deque[tuple[Weight, int]] = deque()
        self._fetched_for: dict[Weight, int] = {}
        model.register_forward_pre_hook(lambda *_: self._start_pass())

    @property
    def modules(self) -> Iterable[torch.nn.Module]:
        """The modules for which weights are fetched."""
        return self._own

    @property
    def _traced(self) -> bool:
        return self._passes > 1

    def _start_pass(self) -> None:
        self._clean()
        self._passes += 1
        self._step, self._available = 0, 0
        order = self._order if self._traced else []
        self._queue = deque((weight, step) for step, module in enumerate(order) for weight in self._own[module])
        self._fetched_for = defaultdict(lambda: -1)

    def _clean(self) -> None:
        for weight, handle in list(self._coming.items()):
            handle.wait(self._whole)
            self._release(weight)
        self._coming = {}

    def fetch(self, module: torch.nn.Module, *, forward: bool) -> None:
        """Gathers the weights of a module before its forward or backward pass and, with a trace, the next ones."""
        if not forward:
            self._backward[module] = None
        if self._passes == 1:
            self._order.append(module)
        elif self._traced and (self._step >= len(self._order) or self._order[self._step] is not module):
            self._invalidate()
        own = self._own[module]
        self._gather([weight for weight in own if weight not in self._whole and weight not in self._coming])
        recomputes = forward and torch._C._current_graph_task_id() != -1
        for weight in own:
            self._users[weight].add(module)
            if recomputes and self._backward and not weight.requires_grad:
                owner = next(reversed(self._backward))
                self._recomputed[owner].add(weight)
                self._users[weight].add(owner)
            if handle := self._coming.pop(weight, None):
                handle.wait(self._whole)
        if self._traced:
            self._prefetch(own)
        self._step += 1

    def _invalidate(self) -> None:
        self._clean()
        self._passes, self._order = 0, []
        self._queue.clear()

    def _prefetch(self, own: list[Weight]) -> None:
        waiting = sum(self._fetched_for[weight] < self._step for weight in own)
        while self._queue and waiting:
            weight, step = self._queue.popleft()
            self._fetched_for[weight] = step
            waiting -= 1
        room, elements = min(self._most - self._available, self._ahead), 0
        ahead: dict[Weight, None] = {}
        while self._queue and elements < room:
            weight, step = self._queue.popleft()
            self._fetched_for[weight] = max(self._fetched_for[weight], step)
            if weight not in self._whole and weight not in self._coming and weight not in ahead:
                ahead[weight] = None
                elements += weight.numel()
        self._gather(list(ahead))

    def _gather(self, weights: list[Weight]) -> None:
        if weights:
            handle = _Handle(sorted(weights, key=self._number.__getitem__), self._live)
            self._coming |= dict.fromkeys(weights, handle)
            self._available += sum(weight.numel() for weight in weights)

    def leave(self, module: torch.nn.Module, *, forward: bool) -> None:
        """Releases a module's weights after its forward or backward pass, with a trace unless they are used again soon."""
        released = self._released(module) if self._traced else set(self._own[module])
        own = set(self._own[module])
        if not forward:
            recomputed = self._recomputed.pop(module, set())
            released |= recomputed - self._persistent
            own |= recomputed
            self._backward.pop(module, None)
        for weight in own:
            self._users[weight].discard(module)
            if weight in released:
                self._release(weight)

    def _released(self, module: torch.nn.Module) -> set[Weight]:
        """The weights that a module releases at this place of the trace. As in DeepSpeed, the first answer stays, also in later
        traces: after passes without a backward pass, modules at the same places release what the backward pass will need."""
        place = module, self._step
        if place not in self._releases:
            self._releases[place] = self._not_used_soon(module)
        return set(self._releases[place])

    def _not_used_soon(self, module: torch.nn.Module) -> set[Weight]:
        unused = {weight for weight in self._own[module] if weight not in self._persistent}
        unused -= {weight for weight in unused if self._fetched_for[weight] > self._step}
        passed, step = 0, self._step
        while unused and passed < self._reuse and step < len(self._order):
            later = self._order[step]
            unused.difference_update(self._own[later])
            passed, step = passed + self._elements[later], step + 1
        return unused

    def saved(self, module: torch.nn.Module) -> list[torch.Tensor | None]:
        """The whole weights that the graph keeps although they are released: quantized ones, in the attributes of bitsandbytes'
        functions, and experts, of which linear layers save slices unless they are recomputed."""
        sliced = not self._recomputes or torch._C._current_graph_task_id() != -1
        kept = (w for w in self._own[module] if not w.is_floating_point() or (w.ndim == _EXPERTS and sliced))
        return [self._whole[weight] for weight in kept if weight in self._whole]

    def _release(self, weight: Weight) -> None:
        if weight in self._whole and not self._users[weight]:
            del self._whole[weight]
            self._available -= weight.numel()

    def end_backward(self) -> None:
        """Releases what modules hold whose backward pass never ended, since their inputs have no gradient."""
        while self._backward:
            module, _ = self._backward.popitem()
            for weight in {*self._own[module], *self._recomputed.pop(module, set())}:
                self._users[weight].discard(module)
                if weight not in self._persistent:
                    self._release(weight)

    def release_all(self) -> None:
        """Releases everything, before the optimizer's step."""
        self._clean()
        self._users.clear()
        self._whole.clear()

    def hold_persistent(self) -> None:
        """Gathers the weights that are kept, after the optimizer's step."""
        weights = sorted(self._persistent, key=self._number.__getitem__)
        self._whole |= {weight: self._live.allocate("gathered", weight.numel(), weight.dtype) for weight in weights}


def _own_weights(module: torch.nn.Module, leaves: set[str]) -> Iterator[tuple[torch.nn.Module, list[Weight]]]:
    """Yields each module with the weights that are fetched for it; modules inside a leaf have no hooks."""
    leaf = f"{type(module).__module__}.{type(module).__qualname__}" in leaves
    yield module, list(dict.fromkeys(module.parameters(recurse=leaf)))
    if not leaf:
        for child in module.children():
            yield from _own_weights(child, leaves)

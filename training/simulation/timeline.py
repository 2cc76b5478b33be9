"""Records live memory after each operation of a step: its kinds, and the module and line of the operation."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from training.reports.live_memory import LiveStorages, _Live
from training.simulation.caching_allocator import Event

_LIBRARIES = ("/torch/", "/peft/", "/accelerate/", "/bitsandbytes/")


@dataclass(frozen=True)
class Place:
    """The place of an operation: the module's path in the model, and the source line and function in the model's forward."""

    module: str = ""
    line: str = ""
    function: str = ""
    head: bool = False


@dataclass(frozen=True)
class Point:
    """The live memory after an operation: bytes by kind."""

    phase: str
    operator: str
    place: Place
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


class Timeline(LiveStorages):  # type: ignore[no-untyped-call]
    """Counts live storages and records them after each operation; the caller sets `phase`, and with `enter` what is called with a
    module's path and the phase whenever a pass enters another module.

    `events` are the allocations and frees of storages, for training/simulation/caching_allocator.py.

    `head` names the modules that compute logits. Their storages and those of the model's own forward (its loss) count as
    logits, those of other modules as activations. An operation of the backward pass has the place of its forward operation.
    """

    counts_fake = True

    def __init__(self, model: torch.nn.Module, head: set[str]) -> None:
        super().__init__()
        self._head = head
        self._modules = {id(module): name for name, module in model.named_modules()}
        files = {inspect.getsourcefile(type(module)) or "" for module in model.modules()}
        self._files = {name for name in files if not any(library in name for library in _LIBRARIES)}
        self._places: dict[int, Place] = {}
        self._ignored: set[int] = set()
        self._entered = "", ""
        self.enter: Callable[[str, str], None] | None = None
        self.phase = "load"
        self.points: list[Point] = []
        self.events: list[Event] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = self._place() if self.phase in ("forward", "backward") else Place()
        if self.phase in ("forward", "backward"):
            if self.enter and place.module and (place.module, self.phase) != self._entered:
                self._entered = place.module, self.phase
                self.enter(place.module, self.phase)
            self.kind = "logits" if place.head else "activations"
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._record(str(func), place)
        return result

    def _record(self, operator: str, place: Place) -> None:
        if not self.points or self.points[-1].total != self.current or self.points[-1].phase != self.phase:
            self.points.append(Point(self.phase, operator, place, {k: n for k, n in self.by_kind.items() if n}))

    def allocate(self, kind: str, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor that a library allocates outside the model's operations; `kind` also names the point."""
        tensor = torch.empty(elements, dtype=dtype)
        self.hold([tensor], kind)
        self._record(kind, self.points[-1].place if self.points else Place())
        return tensor

    def ignore(self, model: torch.nn.Module) -> None:
        """Stops counting the model's parameters; under sharding, whole weights count only while gathered."""
        self._ignored = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        storage = super()._storage(tensor)
        return None if storage is not None and storage._cdata in self._ignored else storage

    def _set_size(self, live: _Live, size: int) -> None:
        before = live.size
        super()._set_size(live, size)
        if live.size != before:
            self.events.append((id(live), live.size))

    def _on_free(self, key: int, reference: Any) -> None:
        self.events.append((id(self._live[key]), 0))
        super()._on_free(key, reference)

    def _place(self) -> Place:
        """Returns the place found on the stack; in the backward pass, without a module's forward, that of the autograd node."""
        place = self._on_stack(sys._getframe(2))
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        if place.module or place.line:
            if torch.is_grad_enabled():
                self._places.setdefault(torch.autograd._get_sequence_nr() - 1, place)  # type: ignore[attr-defined]
            return place
        return self._places.get(node._sequence_nr(), Place()) if node else Place()

    def _on_stack(self, frame: FrameType | None) -> Place:
        module, line, function = None, "", ""
        while frame is not None and (module is None or not line):
            code = frame.f_code
            if code.co_name == "forward" and module is None:
                module = self._modules.get(id(frame.f_locals.get("self")))
            if not line and code.co_filename in self._files:
                file = code.co_filename.rpartition("site-packages/")[2]
                line, function = f"{file}:{frame.f_lineno}", code.co_qualname
            if code.co_name == "one_step":
                break
            frame = frame.f_back
        if module is None and not line:
            return Place()
        name = module or ""
        return Place(name, line, function, name in self._head)

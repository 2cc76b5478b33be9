"""Counts the memory of live tensor storages: the sum, its peak, and a budget.

CUDA's allocator counts what it allocates and raises an error when memory is full. This mode does the same on CPU, to measure
a run's memory, to limit it and to test out-of-memory handling without a GPU.
"""

import os
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import psutil
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from training.config.machine import Machine

BLOCK = 512
"""Bytes that a storage's size is rounded up to, as CUDA's caching allocator does."""
_MIB = 2**20

Groups = dict[tuple[str, tuple[int, ...], str], list[int]]
"""The bytes of tensors by kind, shape and dtype."""


@dataclass
class _Live:
    reference: weakref.ref[torch.UntypedStorage]
    size: int
    kind: str
    shape: tuple[int, ...]
    dtype: str


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations of this thread, and their backward passes on CPU, create or use while it is entered.

    A storage counts once, however many tensors view it, in bytes rounded up to BLOCK, until it is freed. `current` is their
    sum, `peak` its highest value, `by_kind` and `peak_by_kind` the same by kind. Meta tensors do not count, and neither does
    what a kernel allocates and frees within one operation.

    Fake tensors, which DTensor uses to compute shapes, count only in a simulation (`counts_fake`).

    Raises:
        torch.OutOfMemoryError: the results of an operation do not fit into `budget` bytes.
    """

    counts_fake = False

    def __init__(self, budget: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.budget, self.kind = budget, "other"
        self.current = self.peak = 0
        self.by_kind: Counter[str] = Counter()
        self.peak_by_kind: dict[str, int] = {}
        self._live: dict[int, _Live] = {}
        self._resize: Any = None

    def hold(self, tensors: torch.nn.Module | Iterable[torch.Tensor], kind: str) -> None:
        """Counts tensors that exist already and sets their kind, also of those that count already."""
        if isinstance(tensors, torch.nn.Module):
            tensors = [*tensors.parameters(), *tensors.buffers()]
        for tensor in tensors:
            for part in _parts(tensor):
                self._count(part, kind)
            self.set_kind(tensor, kind)
        self._update_peak()

    def set_kind(self, tensor: torch.Tensor, kind: str) -> None:
        """Sets the kind of a tensor, if it counts."""
        for part in _parts(tensor):
            storage = self._storage(part)
            live = self._live.get(storage._cdata) if storage is not None else None
            if live and live.kind != kind:
                self.by_kind[live.kind] -= live.size
                self.by_kind[kind] += live.size
                live.kind = kind

    def reset_peak(self) -> None:
        """Resets the peak to the current sum."""
        self.peak, self.peak_by_kind = self.current, dict(self.by_kind)

    def largest(self, count: int) -> list[dict[str, Any]]:
        """Returns the `count` largest groups of equal storages, as `largest_groups`."""
        groups: Groups = defaultdict(list)
        for live in self._live.values():
            groups[live.kind, live.shape, live.dtype].append(live.size)
        return largest_groups(groups, count)

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        # FSDP frees and allocates the storages of its parameters without an operation.
        self._resize, on_resize = torch.UntypedStorage.resize_, self._on_resize
        resize = self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            on_resize(storage)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper such as DTensor; its operations on the inner tensors count instead
        for value in args:
            self._count_all(value)
        before = self.current
        result = func(*args, **(kwargs or {}))
        self._count_all(result)
        if self.budget is not None and self.current > max(self.budget, before):
            requested = self.current - before
            del result  # the error's traceback would keep it alive
            raise self._out_of_memory(requested)
        self._update_peak()
        return result

    def _count_all(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._count(value, self.kind)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._count_all(item)

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        if tensor.device.type == "meta" or (isinstance(tensor, FakeTensor) and not self.counts_fake):
            return None
        with suppress(NotImplementedError, RuntimeError):  # a sparse or opaque tensor has no storage
            return tensor.untyped_storage()
        return None

    def _count(self, tensor: torch.Tensor, kind: str) -> None:
        storage = self._storage(tensor)
        if storage is None:
            return
        size, live = storage.nbytes(), self._live.get(storage._cdata)
        if live is None:
            reference = weakref.ref(storage, partial(self._on_free, storage._cdata))
            live = _Live(reference, 0, kind, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            self._live[storage._cdata] = live
        self._set_size(live, size)

    def _on_resize(self, storage: torch.UntypedStorage) -> None:
        if live := self._live.get(storage._cdata):
            self._set_size(live, storage.nbytes())
            self._update_peak()

    def _set_size(self, live: _Live, size: int) -> None:
        growth = -(-size // BLOCK) * BLOCK - live.size
        if growth:
            live.size += growth
            self.current += growth
            self.by_kind[live.kind] += growth

    def _on_free(self, key: int, _: Any) -> None:
        freed = self._live.pop(key)
        self.current -= freed.size
        self.by_kind[freed.kind] -= freed.size

    def _update_peak(self) -> None:
        if self.current > self.peak:
            self.reset_peak()

    def _out_of_memory(self, requested: int) -> torch.OutOfMemoryError:
        assert self.budget is not None
        return torch.OutOfMemoryError(
            f"CPU out of memory. Tried to allocate {_size(requested)}. The CPU memory budget has a total capacity of "
            f"{_size(self.budget)} of which {_size(max(self.budget - self.current, 0))} is free. "
            f"Of the budget {_size(self.current)} is allocated by PyTorch."
        )


def largest_groups(groups: Groups, count: int) -> list[dict[str, Any]]:
    """Returns the `count` groups with the most bytes: kind, shape, dtype, count, and bytes of all."""
    return [
        {"kind": kind, "shape": list(shape), "dtype": dtype, "count": len(sizes), "bytes": sum(sizes)}
        for (kind, shape, dtype), sizes in sorted(groups.items(), key=lambda group: -sum(group[1]))[:count]
    ]


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the plain tensors inside a wrapper such as DTensor, or the tensor itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]  # DTensor also lists its mesh
    return [plain for part in parts if isinstance(part, torch.Tensor) for plain in _parts(part)]


def _size(size: int) -> str:
    """Formats bytes as CUDA's allocator does; the diagnosis reads both."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"


_counting: list[LiveStorages] = []  # of this process, the innermost last


@contextmanager
def limited_memory(limit: float | None, machine: Machine) -> Iterator[None]:
    """Limits this process to `limit`: MiB, or below 1 a fraction of its device's memory.

    On a GPU the allocator enforces the limit. On CPU live storages are counted, and the run reports that count as its memory.
    """
    if limit is None:
        yield
    elif machine.kind == "cuda":
        device = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_per_process_memory_fraction(as_fraction(limit, machine.memory_bytes[device]), device)
        yield
    else:
        memory = psutil.virtual_memory().total
        with counted_memory(round(as_fraction(limit, memory) * memory)):
            yield


@contextmanager
def counted_memory(budget: int | None = None) -> Iterator[LiveStorages]:
    """Counts live storages, for `used_bytes` and `peak_bytes` (training/reports/report.py) too; `budget` is in bytes."""
    with LiveStorages(budget) as counter:
        _counting.append(counter)
        try:
            yield counter
        finally:
            _counting.remove(counter)


def counter() -> LiveStorages | None:
    """Returns the active counter of this process's live storages, or None."""
    return _counting[-1] if _counting else None


def as_fraction(limit: float, memory_bytes: int) -> float:
    """Returns `limit` as a fraction of a device's memory."""
    return limit if limit < 1 else min(1.0, limit * _MIB / memory_bytes)

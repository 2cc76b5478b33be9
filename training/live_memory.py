"""Counting the memory of tensors where no device counts it: the storages that live, their sum and its peak, and a budget.

CUDA's allocator knows what is allocated, and refuses more than there is. On CPU this mode does, so that what a run needs can be
measured, and running out of memory be tried, without a GPU.
"""

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

BLOCK = 512
"""Bytes that a storage's size is rounded up to, as CUDA's caching allocator does."""


@dataclass
class _Live:
    reference: weakref.ref[torch.UntypedStorage]
    size: int
    kind: str
    shape: tuple[int, ...]
    dtype: str


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, counts the storages that operations of this thread, and their backward passes on CPU, make or meet.

    A storage counts once, however many tensors view it, in bytes rounded up to BLOCK, and until it is freed. `current` is
    their sum now, `peak` its highest value, `by_kind` and `peak_by_kind` what they were made of. Tensors on meta count nothing,
    and what a kernel allocates and frees within one operation is not seen.

    Fake tensors, by which DTensor works out shapes, count only in a simulation (`counts_fake`).

    Raises:
        torch.OutOfMemoryError: from the operation whose results do not fit into `budget` bytes.
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
        """Counts tensors that were there before, and says of which kind they are; so may be said of those that count already."""
        if isinstance(tensors, torch.nn.Module):
            tensors = [*tensors.parameters(), *tensors.buffers()]
        for tensor in tensors:
            for part in _parts(tensor):
                self._see(part, kind)
            self.name(tensor, kind)
        self._raise_peak()

    def name(self, tensor: torch.Tensor, kind: str) -> None:
        """Says of which kind a tensor is, if it counts."""
        for part in _parts(tensor):
            self._rename(part, kind)

    @contextmanager
    def making(self, kind: str) -> Iterator[None]:
        """What is new within counts as `kind`."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    def reset_peak(self) -> None:
        """Begins the peak anew at what lives now."""
        self.peak, self.peak_by_kind = self.current, dict(self.by_kind)

    def largest(self, count: int) -> list[dict[str, Any]]:
        """The `count` largest groups of alike storages: kind, shape and dtype as first met, count, and bytes of all."""
        groups: dict[tuple[str, tuple[int, ...], str], list[int]] = defaultdict(list)
        for live in self._live.values():
            groups[live.kind, live.shape, live.dtype].append(live.size)
        found = sorted(groups.items(), key=lambda group: -sum(group[1]))[:count]
        return [
            {"kind": kind, "shape": list(shape), "dtype": dtype, "count": len(sizes), "bytes": sum(sizes)}
            for (kind, shape, dtype), sizes in found
        ]

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        # FSDP frees and allocates what its parameters view without an operation.
        self._resize, count = torch.UntypedStorage.resize_, self._resized
        resize = self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            done = resize(storage, size)
            count(storage)
            return done

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper, such as DTensor: its operations on the tensors within are seen instead
        for value in args:
            self._see_all(value)
        before = self.current
        made = func(*args, **(kwargs or {}))
        self._see_all(made)
        if self.budget is not None and self.current > max(self.budget, before):
            asked = self.current - before
            del made  # which the error's traceback would keep
            raise self._out_of_memory(asked)
        self._raise_peak()
        return made

    def _see_all(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._see(value, self.kind)
        elif isinstance(value, (list, tuple)):
            for one in value:
                self._see_all(one)

    def _storage(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        if tensor.device.type == "meta" or (isinstance(tensor, FakeTensor) and not self.counts_fake):
            return None
        with suppress(NotImplementedError, RuntimeError):  # a sparse or opaque tensor has none
            return tensor.untyped_storage()
        return None

    def _see(self, tensor: torch.Tensor, kind: str) -> None:
        storage = self._storage(tensor)
        if storage is None:
            return
        size, known = storage.nbytes(), self._live.get(storage._cdata)
        if known is None:
            reference = weakref.ref(storage, partial(self._forget, storage._cdata))
            known = _Live(reference, 0, kind, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            self._live[storage._cdata] = known
        self._resize_to(known, size)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if known := self._live.get(storage._cdata):
            self._resize_to(known, storage.nbytes())
            self._raise_peak()

    def _resize_to(self, live: _Live, size: int) -> None:
        more = -(-size // BLOCK) * BLOCK - live.size
        if more:
            live.size += more
            self.current += more
            self.by_kind[live.kind] += more

    def _rename(self, tensor: torch.Tensor, kind: str) -> None:
        storage = self._storage(tensor)
        known = self._live.get(storage._cdata) if storage is not None else None
        if known and known.kind != kind:
            self.by_kind[known.kind] -= known.size
            self.by_kind[kind] += known.size
            known.kind = kind

    def _forget(self, key: int, _: Any) -> None:
        gone = self._live.pop(key)
        self.current -= gone.size
        self.by_kind[gone.kind] -= gone.size

    def _raise_peak(self) -> None:
        if self.current > self.peak:
            self.reset_peak()

    def _out_of_memory(self, asked: int) -> torch.OutOfMemoryError:
        assert self.budget is not None
        return torch.OutOfMemoryError(
            f"CPU out of memory. Tried to allocate {_words(asked)}. The CPU memory budget has a total capacity of "
            f"{_words(self.budget)} of which {_words(max(self.budget - self.current, 0))} is free. "
            f"Of the budget {_words(self.current)} is allocated by PyTorch."
        )


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a wrapper such as DTensor is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]  # DTensor names its mesh among them
    return [plain for part in parts if isinstance(part, torch.Tensor) for plain in _parts(part)]


def _words(size: int) -> str:
    """A size as CUDA's allocator writes it."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"

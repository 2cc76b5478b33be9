"""Defers what the libraries write into a checkpoint: they hand over state, and a writer writes a copy of it later.

transformers, PEFT, accelerate and DeepSpeed write large files with three functions: `torch.save`, safetensors' `save_file` and
`torch.distributed.checkpoint.save`. Files that are written otherwise are small. Copies are in host memory.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import peft.peft_model
import psutil
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers.modeling_utils
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_unflatten

from training.ranks.distributed import several_ranks
from training.units import byte_size

_KEPT_FREE = 2**30
"""Bytes of host memory that copies leave free on the machine."""
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


class HostCopies:
    """Copies state to host memory. The memory of tensors that stay in place is reused at the next checkpoint."""

    def __init__(self) -> None:
        self._on_gpu = torch.cuda.is_available()
        # DefaultStager of torch 2.11 can stage only once. Copies to pinned memory are several times faster.
        self._stager = StateDictStager(pin_memory=self._on_gpu)
        self._held: dict[str, int] = {}
        self._reserved = 0  # bytes that no name holds yet
        self._preparing: threading.Thread | None = None

    def prepare(self, tensors: Iterable[torch.Tensor]) -> None:
        """Reserves the memory for copies of tensors, in the background, so that the first checkpoint does not wait for it.

        Reserving takes longer than copying: the system provides and clears each page, or pins it.
        """
        state = list(tensors)
        if not self.shortage("", state):
            self._reserved = tensor_bytes(state)
            self._preparing = threading.Thread(target=self._reserve, args=(state,), name="host copies", daemon=True)
            self._preparing.start()

    def shortage(self, name: str, state: Any) -> str:
        """Why `state` cannot be copied, with the sizes; empty if enough host memory is free."""
        size = tensor_bytes(state)
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # all copy at the same time
        free = max(0, free_bytes() - _KEPT_FREE) // ranks
        if size - self._held.get(name, self._reserved) <= free:
            return ""
        return f"a copy needs {byte_size(size)} of host memory, but {byte_size(free)} are free"

    def copy(self, name: str, state: Any) -> Any:
        """Returns a copy of `state` with its tensors in host memory. It is valid until the next copy."""
        if self._preparing is not None:
            self._preparing.join()  # or it would overwrite this copy
        copied = self._stage(state)
        size = tensor_bytes(state)
        if name not in self._held:
            self._reserved = max(0, self._reserved - size)
        self._held[name] = size
        return copied

    def _reserve(self, state: Any) -> None:
        with suppress(RuntimeError):  # out of memory; the checkpoint itself finds out whether it can be copied
            self._stage(state)

    def _stage(self, state: Any) -> Any:
        # other types, such as torch.Size, stay as they are
        leaves, tree = tree_flatten(state, is_leaf=lambda node: type(node) not in (dict, OrderedDict, list, tuple))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        with _disable_current_modes():  # the counter of memory_limit
            copied = self._stager.stage({"tensors": list(map(_parts, tensors))}, non_blocking=self._on_gpu)
        if self._on_gpu:
            torch.cuda.synchronize()
        copies = map(_whole, tensors, copied["tensors"])
        # the stager fails on objects that are pickled with their class, such as DeepSpeed's loss scaler
        return tree_unflatten(
            [next(copies) if isinstance(leaf, torch.Tensor) else deepcopy(leaf) for leaf in leaves], tree
        )


def _is_quantized(leaf: Any) -> bool:
    """True for the moments of torchao's optimizers, of which the stager can copy only the parts."""
    return is_traceable_wrapper_subclass(leaf) and not isinstance(leaf, DTensor)


def _parts(leaf: Any) -> Any:
    return {name: getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]} if _is_quantized(leaf) else leaf


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor, or those that it consists of if it is quantized."""
    return list(_parts(tensor).values()) if _is_quantized(tensor) else [tensor]


def _whole(leaf: Any, copied: Any) -> Any:
    """The copy of a leaf from the copies of its parts."""
    if not _is_quantized(leaf):
        return copied
    return type(leaf).__tensor_unflatten__(copied, leaf.__tensor_flatten__()[1], leaf.shape, leaf.stride())


def tensor_bytes(state: Any) -> int:
    """Bytes on this rank of the tensors in nested dictionaries, lists and tuples."""
    if isinstance(state, torch.Tensor):
        local = state.to_local() if hasattr(state, "to_local") else state
        return int(local.numel() * local.element_size())
    if isinstance(state, dict):
        return sum(tensor_bytes(value) for value in state.values())
    if isinstance(state, (list, tuple)):
        return sum(tensor_bytes(value) for value in state)
    return 0


def free_bytes() -> int:
    """Host memory that processes of this machine and of this control group (a container) can still take."""
    free = psutil.virtual_memory().available
    try:
        limit = (_CONTROL_GROUPS / "memory.max").read_text(encoding="ascii").strip()
        used = int((_CONTROL_GROUPS / "memory.current").read_text(encoding="ascii"))
        statistics = (_CONTROL_GROUPS / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return int(free)
    if limit == "max":
        return int(free)
    files = int(statistics[statistics.index("inactive_file") + 1])  # of the page cache, which the kernel frees first
    return int(min(free, int(limit) - used + files))


Write = Callable[[], Any]


class DeferredWrites:
    """Takes the large files of one checkpoint after another: within `taking`, the libraries' writes become entries of a list."""

    def __init__(self, on_too_large: Callable[[str], None]) -> None:
        """`on_too_large` gets a message if a file cannot be copied and is written at once."""
        self._copies, self._on_too_large = HostCopies(), on_too_large
        self._save, self._save_file = torch.save, safetensors.torch.save_file
        self._save_sharded: Any = dcp.save  # type: ignore[attr-defined]
        self._group: dist.ProcessGroup | None = None

    def prepare(self, tensors: Iterable[torch.Tensor]) -> None:
        """Reserves host memory for copies of tensors, in the background."""
        self._copies.prepare(tensors)

    @contextmanager
    def taking(self) -> Iterator[list[Write]]:
        """Yields the list of writes, complete at the end of the context. Every rank enters it."""
        writes: list[Write] = []
        if self._group is None and several_ranks():  # the writers' messages must not mix with those of training
            self._group = dist.new_group(backend="gloo")
        with ExitStack() as stack:
            stack.enter_context(_replaced(torch, "save", partial(self._take, writes)))
            for module in (transformers.modeling_utils, peft.peft_model):
                stack.enter_context(_replaced(module, "safe_save_file", partial(self._take_tensors, writes)))
            stack.enter_context(_replaced(dcp, "save", partial(self._take_shards, writes)))
            yield writes

    def _take(self, writes: list[Write], state: Any, file: Any, *arguments: Any, **named: Any) -> None:
        if not isinstance(file, (str, Path)):
            self._save(state, file, *arguments, **named)
            return
        # Not DeepSpeed's older format: it is written without releasing the interpreter's lock.
        self._defer(writes, str(file), state, lambda copy: self._save(copy, file))

    def _take_tensors(self, writes: list[Write], tensors: Any, file: Any, metadata: Any = None) -> None:
        self._defer(writes, str(file), tensors, lambda copy: self._save_file(copy, file, metadata=metadata))

    def _take_shards(self, writes: list[Write], state_dict: Any, **named: Any) -> None:
        name = str(getattr(named.get("storage_writer"), "path", named.get("checkpoint_id")))
        write = partial(self._save_sharded, process_group=self._group, **named)
        self._defer(writes, name, state_dict, write, together=True)

    def _defer(
        self, writes: list[Write], file: str, state: Any, write: Callable[[Any], Any], *, together: bool = False
    ) -> None:
        """Appends a write, or writes at once if host memory is short; `together` if all ranks must do the same."""
        name = Path(file).name
        shortage = self._copies.shortage(name, state)
        if self._any_rank(bool(shortage)) if together else shortage:
            self._on_too_large(f"{name} is written while training waits: {shortage or 'other ranks lack memory'}.")
            write(state)
        else:
            writes.append(partial(write, self._copies.copy(name, state)))

    def _any_rank(self, condition: bool) -> bool:
        if self._group is None:
            return condition
        flag = torch.tensor([int(condition)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())


@contextmanager
def _replaced(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, original)

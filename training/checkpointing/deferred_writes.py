"""Defers what the libraries write into a checkpoint: they hand over state, and a writer writes a copy of it later.

transformers, PEFT, accelerate and DeepSpeed write large files with three functions: `torch.save`, safetensors' `save_file` and
`torch.distributed.checkpoint.save`. Files that are written otherwise are small.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import peft.peft_model
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers.modeling_utils

from training.checkpointing.host_copies import HostCopies

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
        self._join()
        with ExitStack() as stack:
            stack.enter_context(_replaced(torch, "save", partial(self._take, writes)))
            for module in (transformers.modeling_utils, peft.peft_model):
                stack.enter_context(_replaced(module, "safe_save_file", partial(self._take_tensors, writes)))
            stack.enter_context(_replaced(dcp, "save", partial(self._take_shards, writes)))
            yield writes

    def _join(self) -> None:
        """Creates a process group for writers, whose messages must not mix with those of training."""
        if self._group is None and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")

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

"""The most memory that a process may take for its tensors, to try out on a large machine what fits a smaller one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from training.live_memory import LiveStorages
from training.rules import Machine

_MIB = 2**20
_counting: list[LiveStorages] = []  # of this process, the innermost last


@contextmanager
def limited_memory(limit: float | None, machine: Machine) -> Iterator[None]:
    """Limits this process to `limit`, a fraction below 1 of its device's memory or MiB.

    On a GPU its allocator heeds the limit. On CPU live storages are counted, and what a run reports as its memory is that count.
    """
    if limit is None:
        yield
    elif machine.kind == "cuda":
        device = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_per_process_memory_fraction(as_fraction(limit, machine.memory_bytes[device]), device)
        yield
    else:
        memory = psutil.virtual_memory().total
        with counted_memory(int(as_fraction(limit, memory) * memory)):
            yield


@contextmanager
def counted_memory(budget: int | None = None) -> Iterator[LiveStorages]:
    """Counts live storages within, for `used_bytes` and `peak_bytes` (training/report.py) too, and heeds a budget in bytes."""
    with LiveStorages(budget) as counter:
        _counting.append(counter)
        try:
            yield counter
        finally:
            _counting.remove(counter)


def counter() -> LiveStorages | None:
    """What counts this process's live storages now, if anything does."""
    return _counting[-1] if _counting else None


def as_fraction(limit: float, memory_bytes: int) -> float:
    """`limit` as a fraction of a device's memory."""
    return limit if limit < 1 else min(1.0, limit * _MIB / memory_bytes)

"""Limits the tensor memory of a process, to test on a large machine what fits a smaller one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from training.config.machine import Machine
from training.reports.live_memory import LiveStorages

_MIB = 2**20
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

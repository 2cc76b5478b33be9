"""The most GPU memory that a process may take, to try out on a large GPU what fits a smaller one."""

import os

import torch

from training.rules import Machine

_MIB = 2**20


def limit_memory(limit: float | None, machine: Machine) -> None:
    """Limits this process to `limit`, a fraction of its GPU below 1 or MiB. Without a GPU nothing is limited."""
    if limit is None or machine.kind != "cuda":
        return
    device = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_per_process_memory_fraction(as_fraction(limit, machine.memory_bytes[device]), device)


def as_fraction(limit: float, memory_bytes: int) -> float:
    """`limit` as a fraction of a GPU of that size."""
    return limit if limit < 1 else min(1.0, limit * _MIB / memory_bytes)

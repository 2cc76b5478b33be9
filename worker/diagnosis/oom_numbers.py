"""Reads the numbers of torch's out-of-memory message, in the wording of torch 1 and torch 2."""

import re
from dataclasses import dataclass

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_PATTERNS = {
    "capacity_bytes": (rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity"),
    "free_bytes": (rf"of which {_SIZE} is free", rf"{_SIZE} free"),
    "allocated_bytes": (rf"{_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated"),
    "unused_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "reserved_bytes": (rf"{_SIZE} reserved in total by PyTorch",),
    "own_bytes": (rf"this process has {_SIZE} memory in use",),
}
_GPU = re.compile(r"GPU (\d+)")
_OTHERS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_BLOCK = 2 * 2**20  # torch's allocator rounds allocations above 10 MiB up to this, and reports the rounded size


@dataclass(frozen=True)
class Numbers:
    """Bytes, where the message gives them. `others`: pid and bytes of each other process on the GPU.

    `least` and `most` bound the size of the tensor that did not fit: the reported size is rounded to hundredths of its unit
    and to the allocator's blocks (c10/cuda/CUDACachingAllocator.cpp: kRoundLarge, kMinLargeAlloc).
    """

    requested: int | None = None
    least: int = 0
    most: int = 0
    gpu: int | None = None
    sizes: dict[str, int] | None = None
    others: tuple[tuple[int, int], ...] = ()

    @property
    def unused(self) -> int:
        """Bytes that torch has reserved but does not use: freed, and too fragmented for the request."""
        sizes = self.sizes or {}
        reserved = sizes.get("reserved_bytes", 0) - sizes.get("allocated_bytes", 0)
        return sizes.get("unused_bytes", max(reserved, 0))


def read_numbers(message: str) -> Numbers:
    """The numbers of a message; missing ones keep their defaults."""
    gpu, asked = _GPU.search(message), _ASKED.search(message)
    sizes = {name: found for name, patterns in _PATTERNS.items() if (found := _first(patterns, message)) is not None}
    # In a container the process may appear under another pid: the list is used only if the message also names this process.
    others = tuple((int(pid), _bytes(*size)) for pid, *size in _OTHERS.findall(message)) if "own_bytes" in sizes else ()
    if asked is None:
        return Numbers(gpu=int(gpu[1]) if gpu else None, sizes=sizes, others=others)
    requested, rounding = _bytes(asked[1], asked[2]), int(_UNITS[asked[2]] * 0.005) + 1
    return Numbers(
        requested=requested,
        least=max(requested - rounding - _BLOCK, 0),
        most=requested + rounding,
        gpu=int(gpu[1]) if gpu else None,
        sizes=sizes,
        others=others,
    )


def _first(patterns: tuple[str, ...], message: str) -> int | None:
    found = next((found for pattern in patterns if (found := re.search(pattern, message))), None)
    return _bytes(found[1], found[2]) if found else None


def _bytes(number: str, unit: str) -> int:
    try:
        return round(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):  # "1.2.3", or endless digits, in a damaged log
        return 0

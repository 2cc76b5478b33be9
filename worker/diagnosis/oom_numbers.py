"""Reads the numbers of torch's out-of-memory message, in the wording of torch 1 and 2, and guesses which tensor has the size."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from training.model_info.config_json import Dimensions

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"KB": 2**10, "MB": 2**20, "GB": 2**30, "M": 2**20, "G": 2**30}  # of Apple's GPUs and XLA, by 1,024 too
_SIZE = r"([\d.]+) ?(bytes|KiB|MiB|GiB|TiB|KB|MB|GB|[MG]\b)"
_ASKED = re.compile(rf"(?:[Tt]ried to allocate|trying to allocate|memory allocating|to reserve) {_SIZE}")
_PATTERNS = {
    "capacity_bytes": (rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity", rf"max allowed: {_SIZE}"),
    "free_bytes": (rf"of which {_SIZE} is free", rf"{_SIZE} free"),
    "allocated_bytes": (rf"{_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated", rf"MPS allocated: {_SIZE}"),
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


ATTENTION, LOGITS, ACTIVATION = "attention matrix", "logits", "MLP activation"
KINDS = (ATTENTION, LOGITS, ACTIVATION)
_BATCHES = (*range(1, 9), 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)
_SHORTEST = 16  # tokens; nothing shorter fills a GPU
_MOST = 8


@dataclass(frozen=True)
class Guess:
    """A tensor of the requested size. `shape` counts elements of `element_bytes` each."""

    tensor: str
    shape: tuple[int, ...]
    element_bytes: int
    batch_size: int
    sequence_length: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.element_bytes

    @property
    def words(self) -> str:
        """The tensor's size as a product."""
        return f"{' x '.join(f'{size:,}' for size in self.shape)} x {self.element_bytes} bytes"


def guess(
    least: int,
    most: int,
    dimensions: Dimensions,
    *,
    kinds: tuple[str, ...] = KINDS,
    batch: int | None = None,
    lengths: frozenset[int] = frozenset(),
    element_bytes: tuple[int, ...] = (4, 2),
) -> list[Guess]:
    """Tensors whose size in bytes is between `least` and `most`, the most likely first.

    An attention matrix is (batch, heads, L, L), logits are (batch, L, vocabulary) or one row less, an MLP activation is
    (batch, L, intermediate). `lengths` are those that the log mentions. A length is more likely if it is one of them,
    if the model supports it, and if it is a round number; a batch size, if it is a power of two.
    """
    batches = (batch,) if batch else _BATCHES
    candidates = [
        candidate
        for kind in kinds
        for width in element_bytes
        for rows in batches
        for candidate in _of(kind, least, most, dimensions, rows, width)
        if candidate.sequence_length >= _SHORTEST
    ]
    return sorted(candidates, key=lambda candidate: _unlikely(candidate, kinds, element_bytes, dimensions, lengths))[
        :_MOST
    ]


def exact(least: int, most: int, shapes: list[tuple[int, ...]]) -> Guess | None:
    """The tensor of the requested size among the shapes that the log names; shapes begin with the batch."""
    for shape in shapes:
        for width in (4, 2, 1, 8):
            if least <= math.prod(shape) * width <= most:
                square = len(shape) == 4 and shape[-1] == shape[-2]
                length = shape[-1] if square else shape[1]
                return Guess(ATTENTION if square else "tensor", shape, width, shape[0], length)
    return None


def _of(kind: str, least: int, most: int, model: Dimensions, rows: int, width: int) -> Iterator[Guess]:
    if kind == ATTENTION:
        unit = rows * model.heads * width
        low, high = math.isqrt(max(least - 1, 0) // unit) + 1, math.isqrt(most // unit)
    else:
        unit = rows * (model.vocabulary if kind == LOGITS else model.intermediate) * width
        low, high = -(-least // unit), most // unit
    if low > high:
        return
    length = _roundest(low, high)
    if kind == ATTENTION:
        yield Guess(kind, (rows, model.heads, length, length), width, rows, length)
    else:
        yield Guess(kind, (rows, length, unit // rows // width), width, rows, length)
    if kind == LOGITS and low <= (shifted := _roundest(low + 1, high + 1) - 1) <= high:
        # The loss drops the last token when it shifts the labels.
        yield Guess(kind, (rows, shifted, unit // rows // width), width, rows, shifted + 1)


def _roundest(low: int, high: int) -> int:
    """The multiple of the largest power of two (64 or more) within the bounds, else their middle."""
    for power in (8192, 4096, 2048, 1024, 512, 256, 128, 64):
        if (multiple := -(-low // power) * power) <= high:
            return multiple
    return (low + high + 1) // 2


def _unlikely(
    candidate: Guess, kinds: tuple[str, ...], widths: tuple[int, ...], model: Dimensions, lengths: frozenset[int]
) -> tuple[bool, int, bool, bool, int, int, int]:
    too_long = model.positions is not None and candidate.sequence_length > model.positions
    roundness = next((power for power in (2048, 1024, 512, 256) if candidate.sequence_length % power == 0), 0)
    return (
        too_long,
        kinds.index(candidate.tensor),
        candidate.sequence_length not in lengths,
        candidate.batch_size.bit_count() > 1,  # batches are powers of two more often than not
        -roundness,
        widths.index(candidate.element_bytes),
        candidate.batch_size,
    )

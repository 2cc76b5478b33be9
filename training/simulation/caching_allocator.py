"""Replays allocations through the rules of PyTorch's CUDA caching allocator, to forecast the memory that it reserves. No torch.

The rules and constants are those of c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (torch 2.13): sizes are
rounded up to 512 bytes; requests of up to 1 MiB come from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger
ones get a segment of their own, rounded up to 2 MiB; the smallest free block that is large enough is taken and split; a freed
block joins its free neighbors; if the device is full, segments without used blocks are given back, and the request is tried
again. One stream is replayed.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

MIN_BLOCK = 512
SMALL_SIZE = 2**20
SMALL_BUFFER = 2 * 2**20
LARGE_BUFFER = 20 * 2**20
MIN_LARGE_ALLOCATION = 10 * 2**20
ROUND_LARGE = 2 * 2**20

Event = tuple[int, int]
"""A storage's number, and its new size in bytes; 0 frees it."""


@dataclass(frozen=True)
class Reserved:
    """The result of a replay: peaks in bytes of allocated and reserved memory; `fits` is False if a request failed."""

    allocated_bytes: int
    reserved_bytes: int
    fits: bool = True


@dataclass(eq=False)
class _Segment:
    size: int
    small: bool


@dataclass(eq=False)
class _Block:
    """A part of a segment; `before` and `after` are its neighbors there."""

    segment: _Segment
    size: int
    number: int
    used: bool = False
    before: "_Block | None" = None
    after: "_Block | None" = None


@dataclass
class CachingAllocator:
    """The state of the allocator on a device of `limit` bytes (None: without limit).

    With `expandable_segments` each pool is one segment that grows at its end, and only blocks that do not fit are mapped.
    """

    limit: int | None = None
    expandable_segments: bool = False
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    _made: int = 0
    _free: dict[bool, list[tuple[int, int, _Block]]] = field(default_factory=lambda: {True: [], False: []})
    _ends: dict[bool, _Block] = field(default_factory=dict)

    def allocate(self, size: int) -> _Block:
        """A block of at least `size` bytes.

        Raises:
            MemoryError: the device is full, also after unused segments were given back.
        """
        rounded = round_size(size)
        small = rounded <= SMALL_SIZE
        block = self._best_fit(rounded, small) or self._more(rounded, small)
        if block is None:
            self.release_unused()
            block = self._best_fit(rounded, small) or self._more(rounded, small)
        if block is None:
            raise MemoryError(rounded)
        self._split(block, rounded)
        block.used = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: _Block) -> None:
        """Returns a block to its pool; it joins its free neighbors."""
        self.allocated -= block.size
        block.used = False
        for neighbor in (block.before, block.after):
            if neighbor is not None and not neighbor.used:
                self._take(neighbor)
                self._join(block, neighbor)
        self._put(block)

    def release_unused(self) -> None:
        """Gives segments without used blocks back to the device, as `empty_cache` does; of an expandable one its free pages."""
        for small, free in self._free.items():
            page = SMALL_BUFFER if small else LARGE_BUFFER
            for _, _, block in list(free):
                if self.expandable_segments and block.size >= page:
                    self._take(block)
                    self.reserved -= block.size // page * page
                    block.size %= page
                    block.used = not block.size  # an empty block remains as a gap between its neighbors
                    if block.size:
                        self._put(block)
                elif block.size == block.segment.size:
                    self._take(block)
                    self.reserved -= block.size

    def _best_fit(self, rounded: int, small: bool) -> _Block | None:
        free = self._free[small]
        position = bisect_left(free, (rounded, 0))
        return free.pop(position)[2] if position < len(free) else None

    def _more(self, rounded: int, small: bool) -> _Block | None:
        """A block of newly reserved memory; None if the device is full."""
        if self.expandable_segments:
            return self._grown(rounded, small)
        size = segment_size(rounded)
        if not self._reserve(size):
            return None
        return self._block(_Segment(size, small), size)

    def _grown(self, rounded: int, small: bool) -> _Block | None:
        """A block at the end of the pool's expandable segment, which is mapped in pages of 2 MiB (small) or 20 MiB."""
        page = SMALL_BUFFER if small else LARGE_BUFFER
        end = self._ends.get(small)
        free = end.size if end and not end.used else 0
        size = -(-(rounded - free) // page) * page
        if not self._reserve(size):
            return None
        segment = end.segment if end else _Segment(0, small)
        segment.size += size
        block = self._block(segment, size)
        if end:
            end.after, block.before = block, end
            if not end.used:
                self._take(end)
                self._join(block, end)
        self._ends[small] = block
        return block

    def _reserve(self, size: int) -> bool:
        if self.limit is not None and self.reserved + size > self.limit:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _split(self, block: _Block, rounded: int) -> None:
        """Cuts off what the request does not need, if that is at least 512 bytes, in large segments more than 1 MiB."""
        rest = block.size - rounded
        if rest < MIN_BLOCK or (not (block.segment.small or self.expandable_segments) and rest <= SMALL_SIZE):
            return
        other = self._block(block.segment, rest)
        other.before, other.after, block.size = block, block.after, rounded
        if block.after:
            block.after.before = other
        block.after = other
        if self._ends.get(block.segment.small) is block:
            self._ends[block.segment.small] = other
        self._put(other)

    def _join(self, block: _Block, neighbor: _Block) -> None:
        block.size += neighbor.size
        if neighbor is block.before:
            block.before = neighbor.before
            if block.before:
                block.before.after = block
        else:
            block.after = neighbor.after
            if block.after:
                block.after.before = block
        if self._ends.get(block.segment.small) is neighbor:
            self._ends[block.segment.small] = block

    def _block(self, segment: _Segment, size: int) -> _Block:
        self._made += 1
        return _Block(segment, size, self._made)

    def _put(self, block: _Block) -> None:
        insort(self._free[block.segment.small], (block.size, block.number, block))

    def _take(self, block: _Block) -> None:
        free = self._free[block.segment.small]
        del free[bisect_left(free, (block.size, block.number))]


def round_size(size: int) -> int:
    """The bytes that a request takes: a multiple of 512, at least 512."""
    return max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)


def segment_size(rounded: int) -> int:
    """The bytes that are reserved for a rounded request that no free block fits."""
    if rounded <= SMALL_SIZE:
        return SMALL_BUFFER
    return LARGE_BUFFER if rounded < MIN_LARGE_ALLOCATION else -(-rounded // ROUND_LARGE) * ROUND_LARGE


def replay(events: Iterable[Event], *, limit: int | None = None, expandable_segments: bool = False) -> Reserved:
    """The peaks of allocated and reserved memory over a sequence of allocations and frees."""
    allocator = CachingAllocator(limit, expandable_segments)
    blocks: dict[int, _Block] = {}
    for number, size in events:
        if number in blocks:
            allocator.free(blocks.pop(number))
        if size:
            try:
                blocks[number] = allocator.allocate(size)
            except MemoryError:
                return Reserved(allocator.peak_allocated, allocator.peak_reserved, fits=False)
    return Reserved(allocator.peak_allocated, allocator.peak_reserved)


def least_limit(events: list[Event], *, expandable_segments: bool = False, step: int = 2 * 2**20) -> int:
    """The least memory of a device, a multiple of `step`, on which a replay succeeds: near it, unused segments are given back."""
    free = replay(events, expandable_segments=expandable_segments)
    low, high = free.allocated_bytes // step, -(-free.reserved_bytes // step)  # too little (or just enough), enough
    while high - low > 1:
        middle = (low + high) // 2
        fits = replay(events, limit=middle * step, expandable_segments=expandable_segments).fits
        low, high = (low, middle) if fits else (middle, high)
    return high * step

"""The replayed allocator reserves what PyTorch's CUDA caching allocator reserves.

The expected values follow from its constants (c10/cuda/CUDACachingAllocator.cpp): blocks of 512 bytes, small segments of 2 MiB for
requests of up to 1 MiB, segments of 20 MiB for those below 10 MiB, and multiples of 2 MiB for larger ones.
"""

import random

import pytest

from training.simulation.caching_allocator import CachingAllocator, least_limit, replay

KIB, MIB = 2**10, 2**20


def allocate(*sizes: int) -> list[tuple[int, int]]:
    return list(enumerate(sizes))


@pytest.mark.parametrize(
    ("sizes", "allocated", "reserved"),
    [
        ([1], 512, 2 * MIB),
        ([513], 1024, 2 * MIB),
        ([MIB] * 2, 2 * MIB, 2 * MIB),
        ([MIB] * 3, 3 * MIB, 4 * MIB),
        ([MIB + 1], MIB + 512, 20 * MIB),
        ([5 * MIB] * 4, 20 * MIB, 20 * MIB),
        ([6 * MIB] * 4, 24 * MIB, 40 * MIB),  # three in the first segment
        ([10 * MIB], 10 * MIB, 10 * MIB),
        ([10 * MIB + 1], 10 * MIB + 512, 12 * MIB),
        ([33 * MIB], 34 * MIB, 34 * MIB),  # 1 MiB is left: the block is not split
        ([1, MIB + 1], MIB + 1024, 22 * MIB),  # a pool each
    ],
)
def test_reserved_memory_follows_the_sizes_of_segments(sizes: list[int], allocated: int, reserved: int) -> None:
    found = replay(allocate(*sizes))
    assert (found.allocated_bytes, found.reserved_bytes) == (allocated, reserved)


def test_the_smallest_free_block_that_is_large_enough_is_reused() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(29 * MIB) is small
    assert allocator.reserved == 70 * MIB


def test_a_large_block_is_split_only_if_more_than_one_mib_remains() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(40 * MIB))
    assert allocator.allocate(39 * MIB).size == 40 * MIB  # 1 MiB is left: not split
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(40 * MIB))
    assert allocator.allocate(39 * MIB - 512).size == 39 * MIB - 512


def test_freed_neighbors_join_and_serve_a_larger_request() -> None:
    allocator = CachingAllocator()
    first, second, _ = (allocator.allocate(6 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(12 * MIB)
    assert allocator.reserved == 20 * MIB


def test_free_memory_in_pieces_does_not_serve_a_larger_request() -> None:
    events = [(0, 30 * MIB), (0, 0), *((n, 5 * MIB) for n in range(1, 7)), *((n, 0) for n in (1, 3, 5)), (9, 10 * MIB)]
    assert replay(events).reserved_bytes == 40 * MIB
    assert replay(events, expandable_segments=True).reserved_bytes == 40 * MIB


def test_expandable_segments_grow_instead_of_leaving_holes() -> None:
    growing = [event for n in range(1, 20) for event in ((0, n * 20 * MIB), (0, 0))]  # the step grows with its batch
    assert replay(growing).reserved_bytes == 20 * MIB * sum(range(1, 20))
    assert replay(growing, expandable_segments=True).reserved_bytes == 20 * MIB * 19


def test_a_full_device_gets_unused_segments_back_before_a_request_fails() -> None:
    events = [(0, 30 * MIB), (0, 0), (1, 40 * MIB)]
    assert replay(events).reserved_bytes == 70 * MIB
    assert replay(events, limit=40 * MIB).fits
    assert not replay(events, limit=38 * MIB).fits


def test_the_least_limit_lies_between_allocated_and_reserved_memory_and_is_exact() -> None:
    dice = random.Random(5)
    events, live = [], []
    for number in range(400):
        if live and dice.random() < 0.45:
            events.append((live.pop(dice.randrange(len(live))), 0))
        else:
            events.append((number, dice.choice((700, 300 * KIB, 3 * MIB, 11 * MIB, 47 * MIB))))
            live.append(number)
    for expandable in (False, True):
        found = replay(events, expandable_segments=expandable)
        limit = least_limit(events, expandable_segments=expandable)
        assert found.allocated_bytes <= limit <= found.reserved_bytes
        assert replay(events, limit=limit, expandable_segments=expandable).fits
        assert not replay(events, limit=limit - 2 * MIB, expandable_segments=expandable).fits


@pytest.mark.parametrize("expandable", [False, True])
def test_random_sequences_keep_the_books(expandable: bool) -> None:
    dice, allocator, blocks = random.Random(7), CachingAllocator(expandable_segments=expandable), []
    for _ in range(2000):
        if blocks and dice.random() < 0.5:
            allocator.free(blocks.pop(dice.randrange(len(blocks))))
        else:
            blocks.append(allocator.allocate(int(10 ** dice.uniform(1, 8))))
        assert allocator.allocated == sum(block.size for block in blocks) <= allocator.reserved
    for block in blocks:
        allocator.free(block)
    allocator.release_unused()
    assert allocator.allocated == 0
    assert allocator.reserved == 0 if not expandable else allocator.reserved < 22 * MIB

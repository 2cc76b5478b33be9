"""The network between the nodes of a run: latency and bandwidth of each pair, and the offsets of their clocks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

ALL_PAIRS = 8
"""With more nodes only neighbors are measured: the number of pairs grows with the square."""
SLOW_FACTOR = 3.0
LEAST_BANDWIDTH = 100e6
"""Bytes per second: that of an Ethernet of 1 Gbit/s."""
_PINGS, _TIMES = 5, 2
_BYTES = {"cpu": 4 * 2**20, "cuda": 64 * 2**20}


@dataclass(frozen=True)
class Link:
    """A pair of nodes, by number: seconds of an all-reduce of one number, and bytes per second of a large one."""

    first: int
    second: int
    latency: float
    bandwidth: float


def pairs(count: int) -> list[tuple[int, int]]:
    """The pairs of nodes that are measured, such that neighbors in the list mostly have no node in common."""
    if count > ALL_PAIRS:
        return [(first, first + 1) for begin in (0, 1) for first in range(begin, count - 1, 2)]
    return sorted(
        ((first, second) for first in range(count) for second in range(first + 1, count)),
        key=lambda pair: ((pair[0] + pair[1]) % count, pair),
    )


def measure(leaders: Sequence[int], here: int | None, device: torch.device) -> list[Link]:
    """The links of this node's pairs that it leads; a collective of all ranks.

    Args:
        leaders: The rank of each node that measures.
        here: This rank's node if it is one of them, else None.
    """
    links = []
    for first, second in pairs(len(leaders)):
        group = dist.new_group([leaders[first], leaders[second]])  # the backend of the training
        if here in (first, second):
            latency, bandwidth = _timed(group, device)
            if here == first:
                links.append(Link(first, second, latency, bandwidth))
            dist.destroy_process_group(group)
    return links


def clock_offset(leaders: Sequence[int], here: int | None) -> dict[int, float]:
    """On the first node's leader: the offset of each node's clock from its own, in seconds. A collective of all ranks."""
    group = dist.new_group(list(leaders), backend="gloo")
    offsets = {}
    if here is not None:
        for node in range(1, len(leaders)):
            if here == 0:
                offsets[node] = _ask_clock(leaders[node], group)
            elif here == node:
                _answer_clock(leaders[0], group)
        dist.destroy_process_group(group)
    return offsets


def warnings(links: Sequence[Link], names: Mapping[int, str]) -> list[str]:
    """The pairs that are much slower than the others, a sentence with the fix each."""
    if not links:
        return []
    usual, soon = median(link.bandwidth for link in links), median(link.latency for link in links)
    return [
        f"The network between nodes {names[link.first]} and {names[link.second]} is slow: {link.bandwidth / 1e6:,.0f} MB/s and "
        f"{link.latency * 1000:.2f} ms; the median of the pairs is {usual / 1e6:,.0f} MB/s and {soon * 1000:.2f} ms. "
        "Check cable, switch and network interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)."
        for link in links
        if link.bandwidth < max(usual / SLOW_FACTOR, LEAST_BANDWIDTH) or link.latency > max(soon * SLOW_FACTOR, 1e-3)
    ]


def _timed(group: Any, device: torch.device) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second, the best of several: the first one also connects."""
    small = torch.zeros(1, device=device)
    large = torch.zeros(_BYTES[device.type] // 4, device=device)
    for tensor in (small, large):
        _all_reduce(tensor, group)
    latency = min(_all_reduce(small, group) for _ in range(_PINGS))
    return latency, large.nbytes / min(_all_reduce(large, group) for _ in range(_TIMES))


def _all_reduce(tensor: torch.Tensor, group: Any) -> float:
    """Seconds of an all-reduce."""
    began = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _ask_clock(rank: int, group: Any) -> float:
    """The offset of a rank's clock, as NTP measures it, from the quickest of several answers."""
    answers = []
    for _ in range(_PINGS):
        clock, began = torch.zeros(1, dtype=torch.float64), time.time()
        dist.send(clock, rank, group=group)
        dist.recv(clock, rank, group=group)
        ended = time.time()
        answers.append((ended - began, float(clock) - (began + ended) / 2))
    return min(answers)[1]


def _answer_clock(rank: int, group: Any) -> None:
    clock = torch.zeros(1, dtype=torch.float64)
    for _ in range(_PINGS):
        dist.recv(clock, rank, group=group)
        clock[0] = time.time()
        dist.send(clock, rank, group=group)

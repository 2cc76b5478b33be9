"""The memory of a GPU that tensors do not take: CUDA's context, NCCL's buffers, cuBLAS's workspaces. No torch.

Of these constants only Hopper's context was measured by Lathe. `python -m benchmarks.gpu --part memory` measures their sum.
"""

from training.forecast.gpus import Card

_MIB = 2**20
CONTEXT = {
    "volta": 320, "turing": 250, "ampere": 430, "ada": 400, "hopper": 780, "blackwell": 480, "b200": 870, "gb10": 400,
    "cdna": 700, "apple": 0,
}  # fmt: skip
"""MiB of the context and the loaded kernels by generation, with CUDA's lazy loading (since 11.7). An H200 took 766 to 798 (CUDA 13,
docs/gpu.md). Reports in the issues of PyTorch give 300 MiB (#107667) and 300 to 400 MiB on a V100 (#20532); the others are in
proportion to the number of multiprocessors, for each of which the context has its own memory."""
_CHANNELS = {"volta": 12, "ampere": 24, "hopper": 24, "b200": 32, "cdna": 28}
"""NCCL's channels over NVLink (or xGMI), as its topology search reports them; over PCIe it uses about 4."""
_CHANNELS_PCIE = 4
_CHANNEL_BYTES = 12 * _MIB
"""Buffers of a channel to one peer: 10 MiB to receive, 2 MiB to send, as NCCL's log of allocations shows (NVIDIA/nccl #1685)."""
_NCCL_KERNELS = 60 * _MIB
_FAST_LINK = 100e9
"""Bytes per second to peers above which a card has NVLink or xGMI."""


def context_bytes(card: Card) -> int:
    """CUDA's context and kernels."""
    return CONTEXT[card.generation] * _MIB


def communication_bytes(card: Card, ranks: int) -> int:
    """NCCL's buffers on a GPU of a group of `ranks`; its ring has two peers, whatever the number of ranks."""
    if ranks < 2:
        return 0
    channels = _CHANNELS.get(card.generation, _CHANNELS_PCIE) if card.link_rate > _FAST_LINK else _CHANNELS_PCIE
    return _NCCL_KERNELS + channels * _CHANNEL_BYTES


def workspace_bytes(card: Card | None) -> int:
    """cuBLAS's workspaces, which torch's allocator holds: one for the forward pass's thread, one for that of autograd.

    The sizes are those of aten/src/ATen/cuda/CublasHandlePool.cpp (torch 2.13): 32 MiB since Hopper, before it 4 MiB x 2 and
    16 KiB x 8, on AMD's MI300 and MI350 128 MiB.
    """
    if card is None or card.generation == "apple":
        return 0
    since_hopper = card.generation in ("hopper", "blackwell", "b200", "gb10")
    return 2 * (128 * _MIB if card.generation == "cdna" else 32 * _MIB if since_hopper else 8 * _MIB + 128 * 2**10)

"""GPUs by name: their memory and what of it tensors cannot have, their speed, power and bf16 support. No torch.

Memory is the total that the driver reports, a little less than in the name. Rates are the vendor's peaks for dense 16-bit matrix
products and for memory; they only order configurations by speed. The power is the most that a board takes, of its
form with the most.

CUDA's context, NCCL's buffers and cuBLAS's workspaces take memory too. Of their constants only Hopper's context was measured by
Lathe; `python -m benchmarks.gpu --part memory` measures their sum.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace

from training.config.machine import Machine

GIB, MIB = 2**30, 2**20
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
_CHANNEL_BYTES = 12 * MIB
"""Buffers of a channel to one peer: 10 MiB to receive, 2 MiB to send, as NCCL's log of allocations shows (NVIDIA/nccl #1685)."""
_NCCL_KERNELS = 60 * MIB
_FAST_LINK = 100e9
"""Bytes per second to peers above which a card has NVLink or xGMI."""
_POWER_SHARE = (0.5, 1.0)
"""The share of the board's power that training takes on average."""


@dataclass(frozen=True)
class Card:
    """A GPU: memory in bytes, 16-bit FLOP/s, bytes/s of its memory, bytes/s to its peers, bf16 support, the power of its board.

    `generation` is that of its architecture. `unified` is True if it shares the host's memory. `board_watts` is 0 if unknown.
    `note` is a sentence for the forecast, empty for most.
    """

    name: str
    label: str
    memory_bytes: int
    flops: float
    memory_rate: float
    link_rate: float
    bf16: bool = True
    generation: str = "ampere"
    unified: bool = False
    board_watts: int = 0
    note: str = ""

    @property
    def flash(self) -> bool:
        """Whether PyTorch has FlashAttention kernels for it, in 16 bits: on NVIDIA's cards from Ampere on."""
        return self.generation not in ("volta", "turing")

    @property
    def context_bytes(self) -> int:
        """CUDA's context and kernels."""
        return CONTEXT[self.generation] * MIB

    def communication_bytes(self, ranks: int) -> int:
        """NCCL's buffers on a GPU of a group of `ranks`; its ring has two peers, whatever the number of ranks."""
        if ranks < 2:
            return 0
        channels = _CHANNELS.get(self.generation, _CHANNELS_PCIE) if self.link_rate > _FAST_LINK else _CHANNELS_PCIE
        return _NCCL_KERNELS + channels * _CHANNEL_BYTES

    @property
    def workspace_bytes(self) -> int:
        """cuBLAS's workspaces, which torch's allocator holds: one for the forward pass's thread, one for that of autograd.

        The sizes are those of aten/src/ATen/cuda/CublasHandlePool.cpp (torch 2.13): 32 MiB since Hopper, before it 4 MiB x 2 and
        16 KiB x 8, on AMD's MI300 and MI350 128 MiB.
        """
        if self.generation == "apple":
            return 0
        since_hopper = self.generation in ("hopper", "blackwell", "b200", "gb10")
        return 2 * (128 * MIB if self.generation == "cdna" else 32 * MIB if since_hopper else 8 * MIB + 128 * 2**10)

    @property
    def watts(self) -> tuple[float, float] | None:
        """The least and the most power that it takes in training; None if its power is unknown."""
        return (self.board_watts * _POWER_SHARE[0], self.board_watts * _POWER_SHARE[1]) if self.board_watts else None

    def machine(self, count: int, machines: int = 1) -> Machine:
        """A machine with `count` of these GPUs; the run's engine has `machines` like it."""
        labels, sizes = [self.label] * count, [self.memory_bytes] * count
        return Machine("cuda", count, labels, sizes, self.bf16, most_machines=machines)


def _card(
    name: str,
    label: str,
    generation: str,
    gib: float,
    tflops: float,
    memory_gbs: float,
    link_gbs: float,
    watts: int = 0,
) -> Card:
    return Card(
        name, label, int(gib * GIB), tflops * 1e12, memory_gbs * 1e9, link_gbs * 1e9,
        bf16=generation not in ("volta", "turing"), generation=generation, unified=generation in ("gb10", "apple"),
        board_watts=watts,
    )  # fmt: skip


_PCIE3, _PCIE4, _PCIE5 = 12.0, 24.0, 50.0
CARDS = {
    card.name: card
    for card in (
        _card("v100-16gb", "V100 16 GB", "volta", 15.77, 112, 900, 130, 300),
        _card("v100-32gb", "V100 32 GB", "volta", 31.74, 112, 900, 130, 300),
        _card("t4", "T4 16 GB", "turing", 14.75, 65, 300, _PCIE3, 70),
        _card("a10", "A10 24 GB", "ampere", 22.06, 125, 600, _PCIE4, 150),
        _card("rtx3090", "RTX 3090 24 GB", "ampere", 23.69, 71, 936, _PCIE4, 350),
        _card("a100-40gb", "A100 40 GB", "ampere", 39.39, 312, 1555, 270, 400),
        _card("a100-80gb", "A100 80 GB", "ampere", 79.15, 312, 2039, 270, 400),
        _card("l4", "L4 24 GB", "ada", 22.05, 121, 300, _PCIE4, 72),
        _card("rtx4090", "RTX 4090 24 GB", "ada", 23.64, 165, 1008, _PCIE4, 450),
        _card("l40s", "L40S 48 GB", "ada", 44.39, 362, 864, _PCIE4, 350),
        _card("h100", "H100 80 GB", "hopper", 79.19, 989, 3350, 400, 700),
        _card("h200", "H200 141 GB", "hopper", 139.8, 989, 4800, 400, 700),
        _card("rtx5060", "RTX 5060 8 GB", "blackwell", 7.53, 38, 448, _PCIE5, 145),
        _card("rtx5060ti", "RTX 5060 Ti 16 GB", "blackwell", 15.48, 47, 448, _PCIE5, 180),
        _card("rtx5070", "RTX 5070 12 GB", "blackwell", 11.5, 62, 672, _PCIE5, 250),
        _card("rtx5070ti", "RTX 5070 Ti 16 GB", "blackwell", 15.47, 88, 896, _PCIE5, 300),
        _card("rtx5080", "RTX 5080 16 GB", "blackwell", 15.47, 113, 960, _PCIE5, 360),
        _card("rtx5090", "RTX 5090 32 GB", "blackwell", 31.36, 210, 1792, _PCIE5, 575),
        _card("rtxpro4000", "RTX PRO 4000 Blackwell 24 GB", "blackwell", 23.4, 94, 672, _PCIE5, 140),
        _card("rtxpro4500", "RTX PRO 4500 Blackwell 32 GB", "blackwell", 31.3, 110, 896, _PCIE5, 200),
        _card("rtxpro5000", "RTX PRO 5000 Blackwell 48 GB", "blackwell", 47.4, 148, 1344, _PCIE5, 300),
        _card("rtxpro6000", "RTX PRO 6000 Blackwell 96 GB", "blackwell", 94.9, 400, 1792, _PCIE5, 600),
        _card("gb10", "GB10 (DGX Spark) 128 GB", "gb10", 119.6, 100, 273, _PCIE5),
        _card("b200", "B200 192 GB", "b200", 178.3, 2250, 7700, 800, 1000),
        _card("b300", "B300 288 GB", "b200", 267.6, 2250, 8000, 800, 1400),
        _card("mi300x", "MI300X 192 GB", "cdna", 191.9, 1307, 5300, 400, 750),
        _card("mi325x", "MI325X 256 GB", "cdna", 255.9, 1307, 6000, 400, 1000),
        _card("mi355x", "MI355X 288 GB", "cdna", 287.9, 2500, 8000, 500, 1400),
    )
}
_SAME = {
    "v100": "v100-16gb", "a100": "a100-40gb", "3090": "rtx3090", "4090": "rtx4090", "a10g": "a10",
    "h100-80gb": "h100", "h200-141gb": "h200", "b200-192gb": "b200", "b300-288gb": "b300", "t4-16gb": "t4",
    "dgx-spark": "gb10", "5090": "rtx5090", "5080": "rtx5080", "5070": "rtx5070", "5070ti": "rtx5070ti",
}  # fmt: skip
_APPLE = {
    "m1": (2.6, 68), "m1pro": (5.2, 200), "m1max": (10.4, 400), "m1ultra": (20.8, 800), "m2": (3.6, 100),
    "m2pro": (6.8, 200), "m2max": (13.6, 400), "m2ultra": (27.2, 800), "m3": (4.1, 100), "m3pro": (7.4, 150),
    "m3max": (16.3, 400), "m3ultra": (32.8, 819), "m4": (4.6, 120), "m4pro": (9.2, 273), "m4max": (18.4, 546),
    "m5": (5.0, 153), "m5pro": (10.0, 307), "m5max": (20.0, 614),
}  # fmt: skip
"""Apple's chips: TFLOP/s of the GPU, GB/s of its memory."""


def _apple(text: str) -> Card | None:
    """Apple silicon by chip and memory, as in "m4-max-64gb": the GPU may use 2/3 of up to 36 GB of memory, 3/4 of more."""
    match = re.search(r"\bm([1-5])-?(pro|max|ultra)?-(\d+)-?gi?b", text)
    chip = f"m{match[1]}{match[2] or ''}" if match else ""
    if not match or chip not in _APPLE:
        return None
    gib = int(match[3])
    name = " ".join(part for part in (f"M{match[1]}", (match[2] or "").capitalize(), f"{gib} GB") if part)
    return _card(
        f"{chip}-{gib}gb", f"Apple {name}", "apple", gib * (2 / 3 if gib <= 36 else 3 / 4), *_APPLE[chip], _PCIE5
    )


def find_card(text: str) -> Card:
    """The GPU with this name, or a GPU with this number of GiB (`24gib`, `24`) and the speed of an A100.

    Raises:
        ValueError: the name is unknown; lists the known ones.
    """
    plain = re.sub(r"[\s_]+", "-", text.strip().lower())
    name = re.sub(r"^(?:geforce-|nvidia-)+", "", plain)
    name = re.sub(r"(rtx|pro|50\d0)-(?=pro|ti|\d{4})", r"\1", name).removesuffix("-blackwell")
    if card := CARDS.get(_SAME.get(name, name)) or _apple(plain):
        return card
    number = re.fullmatch(r"(\d+(?:\.\d+)?)-?(?:gib|gb|g)?", plain)
    if number and 0.5 <= float(number[1]) <= 4096:
        fast, gib = CARDS["a100-80gb"], float(number[1])
        return Card(plain, f"{gib:g} GiB", int(gib * GIB), fast.flops, fast.memory_rate, fast.link_rate)
    names = ", ".join(CARDS)
    raise ValueError(
        f"is not a known GPU. Use one of {names}, Apple silicon such as m4-max-64gb, or a number of GiB such as 24."
    )


def like(name: str, memory_bytes: int) -> Card:
    """The known GPU closest to the driver's name and memory, with exactly that memory."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower().replace("geforce", "").replace("nvidia", ""))
    keys = sorted(CARDS, key=lambda key: (-len(_words(key)), abs(CARDS[key].memory_bytes - memory_bytes)))
    by_memory = min(CARDS, key=lambda key: abs(CARDS[key].memory_bytes - memory_bytes))
    model = next((key for key in keys if re.search(rf"\b{_words(key)}(?![0-9])", words)), by_memory)
    return replace(CARDS[model], label=name, memory_bytes=memory_bytes)


def _words(key: str) -> str:
    """A pattern for a model in a driver's name: `rtxpro6000` for "RTX PRO 6000 Blackwell Workstation Edition"."""
    parts = re.fullmatch(r"(rtx)?(pro)?([a-z]*\d+[a-z]?)(ti)?", key.partition("-")[0])
    if not parts or not parts[1]:
        return key.partition("-")[0]
    return " ?".join(part if part != "rtx" or parts[2] else "(?:rtx)?" for part in parts.groups() if part)


def of_machine(machine: Machine) -> Card | None:
    """The GPU with the least memory of a machine, which a run must expect to get; None without one. A note lists several kinds."""
    names, memory_bytes = machine.names, machine.memory_bytes
    if machine.kind != "cuda" or not memory_bytes:
        return None
    least = min(range(len(memory_bytes)), key=lambda index: memory_bytes[index])
    card = like(names[least] if names else "", memory_bytes[least])
    kinds = Counter(zip(names, (f"{size / GIB:.0f} GiB" for size in memory_bytes), strict=False))
    if len(kinds) < 2:
        return card
    gpus = ", ".join(f"{count} x {name} ({size})" for (name, size), count in kinds.items())
    note = f"This machine has several kinds of GPUs ({gpus}). The forecast is for the one with the least memory."
    return replace(card, note=note)

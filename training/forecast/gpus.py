"""GPUs by name: their memory and what of it tensors cannot have, their speed, power and bf16 support. No torch.

Memory is the total that the driver reports, a little less than in the name. Rates are the vendor's peaks for dense 16-bit matrix
products and for memory; they only order configurations by speed. The power is the most that a board takes, of its
form with the most.

CUDA's context, NCCL's buffers and cuBLAS's workspaces take memory too. Of their constants only Hopper's context was measured by
Lathe; `python -m benchmarks.gpu --part memory` measures their sum.
"""

import re
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
_PCIE = 50.0
"""GB/s to the peers of a card without a link of its own."""
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


_TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CARDS = {name: _card(name, *row) for name, row in _TABLES["cards"].items()}


def _apple(text: str) -> Card | None:
    """Apple silicon by chip and memory, as in "m4-max-64gb": the GPU may use 2/3 of up to 36 GB of memory, 3/4 of more."""
    match = re.search(r"\bm([1-5])-?(pro|max|ultra)?-(\d+)-?gi?b", text)
    chip = f"m{match[1]}{match[2] or ''}" if match else ""
    if not match or chip not in _TABLES["apple"]:
        return None
    gib, (tflops, memory_gbs) = int(match[3]), _TABLES["apple"][chip]
    name = " ".join(part for part in (f"M{match[1]}", (match[2] or "").capitalize(), f"{gib} GB") if part)
    usable = gib * (2 / 3 if gib <= 36 else 3 / 4)
    return _card(f"{chip}-{gib}gb", f"Apple {name}", "apple", usable, tflops, memory_gbs, _PCIE)


def find_card(text: str) -> Card:
    """The GPU with this name, or a GPU with this number of GiB (`24gib`, `24`) and the speed of an A100. Raises ValueError if the
    name is unknown; lists the known ones."""
    plain = re.sub(r"[\s_]+", "-", text.strip().lower())
    name = re.sub(r"^(?:geforce-|nvidia-)+", "", plain)
    name = re.sub(r"(rtx|pro|50\d0)-(?=pro|ti|\d{4})", r"\1", name).removesuffix("-blackwell")
    if card := CARDS.get(_TABLES["same"].get(name, name)) or _apple(plain):
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

"""GPUs by name: their memory, speed and bf16 support. No torch.

Memory is the total that the driver reports, a little less than in the name. Rates are the vendor's peaks for dense 16-bit matrix
products and for memory; they only order configurations by speed.
"""

import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Card:
    """A GPU: memory in bytes, 16-bit FLOP/s, bytes/s of its memory, bytes/s to its peers, bf16 support."""

    name: str
    label: str
    memory_bytes: int
    flops: float
    memory_rate: float
    link_rate: float
    bf16: bool = True


def _card(
    name: str, label: str, gib: float, tflops: float, memory_gbs: float, link_gbs: float, *, bf16: bool = True
) -> Card:
    return Card(name, label, int(gib * GIB), tflops * 1e12, memory_gbs * 1e9, link_gbs * 1e9, bf16)


_PCIE3, _PCIE4, _PCIE5 = 12.0, 24.0, 50.0
CARDS = {
    card.name: card
    for card in (
        _card("v100-16gb", "V100 16 GB", 15.77, 112, 900, 130, bf16=False),
        _card("v100-32gb", "V100 32 GB", 31.74, 112, 900, 130, bf16=False),
        _card("t4", "T4 16 GB", 14.75, 65, 300, _PCIE3, bf16=False),
        _card("a10", "A10 24 GB", 22.06, 125, 600, _PCIE4),
        _card("l4", "L4 24 GB", 22.05, 121, 300, _PCIE4),
        _card("rtx3090", "RTX 3090 24 GB", 23.69, 71, 936, _PCIE4),
        _card("rtx4090", "RTX 4090 24 GB", 23.64, 165, 1008, _PCIE4),
        _card("a100-40gb", "A100 40 GB", 39.39, 312, 1555, 270),
        _card("a100-80gb", "A100 80 GB", 79.15, 312, 2039, 270),
        _card("h100", "H100 80 GB", 79.19, 989, 3350, 400),
        _card("h200", "H200 141 GB", 139.8, 989, 4800, 400),
        _card("b200", "B200 192 GB", 178.3, 2250, 8000, 800),
    )
}
_SAME = {
    "v100": "v100-16gb", "a100": "a100-40gb", "3090": "rtx3090", "4090": "rtx4090", "a10g": "a10",
    "h100-80gb": "h100", "h200-141gb": "h200", "b200-192gb": "b200", "t4-16gb": "t4",
}  # fmt: skip


def find_card(text: str) -> Card:
    """The GPU with this name, or a GPU with this number of GiB (`24gib`, `24`) and the speed of an A100.

    Raises:
        ValueError: the name is unknown; lists the known ones.
    """
    plain = re.sub(r"[\s_]+", "-", text.strip().lower())
    name = plain.replace("rtx-", "rtx")
    if card := CARDS.get(_SAME.get(name, name)):
        return card
    number = re.fullmatch(r"(\d+(?:\.\d+)?)-?(?:gib|gb|g)?", plain)
    if number and 0.5 <= float(number[1]) <= 4096:
        like = CARDS["a100-80gb"]
        return Card(
            plain,
            f"{float(number[1]):g} GiB",
            int(float(number[1]) * GIB),
            like.flops,
            like.memory_rate,
            like.link_rate,
        )
    raise ValueError(f"is not a known GPU. Use one of {', '.join(CARDS)}, or a number of GiB such as 24.")


def like(name: str, memory_bytes: int) -> Card:
    """The known GPU closest to the driver's name and memory, with exactly that memory."""
    words = name.lower().replace("geforce", "").replace("nvidia", "")
    keys = sorted(CARDS, key=lambda key: abs(CARDS[key].memory_bytes - memory_bytes))
    model = next(
        (key for key in keys if re.search(rf"\b{re.sub(r'-.*', '', key).replace('rtx', '(rtx )?')}\b", words)), keys[0]
    )
    known = CARDS[model]
    return Card(known.name, name, memory_bytes, known.flops, known.memory_rate, known.link_rate, known.bf16)

"""Guesses which tensor has a given size in bytes, with its batch size and sequence length."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from training.model_info.config_json import Dimensions

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
    found = [
        one
        for kind in kinds
        for width in element_bytes
        for rows in batches
        for one in _of(kind, least, most, dimensions, rows, width)
        if one.sequence_length >= _SHORTEST
    ]
    return sorted(found, key=lambda one: _unlikely(one, kinds, element_bytes, dimensions, lengths))[:_MOST]


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
    one: Guess, kinds: tuple[str, ...], widths: tuple[int, ...], model: Dimensions, lengths: frozenset[int]
) -> tuple[bool, int, bool, bool, int, int, int]:
    too_long = model.positions is not None and one.sequence_length > model.positions
    roundness = next((power for power in (2048, 1024, 512, 256) if one.sequence_length % power == 0), 0)
    return (
        too_long,
        kinds.index(one.tensor),
        one.sequence_length not in lengths,
        one.batch_size.bit_count() > 1,  # batches are powers of two more often than not
        -roundness,
        widths.index(one.element_bytes),
        one.batch_size,
    )

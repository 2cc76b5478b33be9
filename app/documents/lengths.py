"""The lengths of a data set's rows, and what each maximum length truncates, small enough to send once. Pure."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BARS = 64
_STOPS = 420

Lengths = NDArray[np.int32]


@dataclass(frozen=True)
class Curve:
    """A histogram of lengths on a logarithmic axis, and the exact losses at each of `stops` (maximum lengths in tokens)."""

    rows: int
    tokens: int
    edges: list[int]
    counts: list[int]
    stops: list[int]
    rows_cut: list[int]
    tokens_lost: list[int]
    untrained: list[int]

    def at(self, limit: int) -> "Loss":
        """The losses at one of the stops."""
        index = self.stops.index(limit)
        return Loss(limit, self.rows_cut[index], self.tokens_lost[index], self.untrained[index])

    @property
    def json(self) -> str:
        """The values that static/histogram.js draws."""
        return json.dumps(vars(self), separators=(",", ":"))


@dataclass(frozen=True)
class Loss:
    """The rows and tokens that a maximum length of `limit` truncates, and the rows left with no loss tokens."""

    limit: int
    rows_cut: int
    tokens_lost: int
    untrained: int


def curve(lengths: Lengths, first_trained: Lengths, wanted: list[int]) -> Curve:
    """The curve for the tokens of each row (0: skipped) and each row's first token with loss (-1: none).

    The stops include the `wanted` ones and are spread evenly over the logarithmic axis.
    """
    usable = lengths > 0
    lengths, first_trained = lengths[usable], first_trained[usable]
    longest, shortest = (int(lengths.max()), int(lengths.min())) if len(lengths) else (1, 1)
    low, high = max(1, shortest // 2), max(longest, *wanted)
    stops = np.unique(np.concatenate([np.geomspace(low, high, _STOPS).round().astype(np.int64), wanted]))
    edges = np.unique(np.geomspace(shortest, longest + 1, _BARS + 1).round().astype(np.int64))
    if len(edges) < 2:
        edges = np.array([shortest, longest + 1])
    counts, _ = np.histogram(lengths, bins=edges)
    total = int(lengths.sum(dtype=np.int64))
    return Curve(
        len(lengths), total, edges.tolist(), counts.tolist(), stops.tolist(), *losses(stops, lengths, first_trained)
    )


def losses(
    stops: NDArray[np.int64], lengths: Lengths, first_trained: Lengths
) -> tuple[list[int], list[int], list[int]]:
    """Truncated rows, truncated tokens and rows with no loss tokens at each of the stops."""
    ordered = np.sort(lengths)
    beyond = np.concatenate([np.cumsum(ordered[::-1], dtype=np.int64)[::-1], [0]])  # tokens of the rows from here on
    whole = np.searchsorted(ordered, stops, side="right")
    rows_cut = len(ordered) - whole
    tokens_lost = beyond[whole] - rows_cut * stops
    starts = np.sort(first_trained[first_trained >= 0])
    never = len(first_trained) - len(starts)
    untrained = len(starts) - np.searchsorted(starts, stops, side="left") + never
    return rows_cut.tolist(), tokens_lost.tolist(), untrained.tolist()

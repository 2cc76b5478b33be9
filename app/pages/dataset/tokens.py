"""A data set's tokens as its page shows them: the lengths of its rows, and one row, a very long one in parts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.tokens.store import TokenStore
from worker.datasets.token_report import Token

_HEAD, _AROUND = 1500, 150  # tokens shown at the start of a long row, and around its truncation point and its end


@dataclass(frozen=True)
class Counts:
    """Numbers of tokens of a row; `loss_starts_at` is the first token with loss, from 1, None if there is none."""

    total: int
    trained: int
    cut: int
    lost: int
    special: int
    loss_starts_at: int | None


@dataclass(frozen=True)
class Piece:
    """Tokens in a row that are shown, from number `start` (from 1) on, after `skipped` ones that are not."""

    skipped: int
    start: int
    tokens: Sequence[Token]


def counts(tokens: Sequence[Token]) -> Counts:
    """The numbers of a row's tokens."""
    return Counts(
        len(tokens),
        sum(token.trained and not token.cut for token in tokens),
        sum(token.cut for token in tokens),
        sum(token.trained and token.cut for token in tokens),
        sum(token.special for token in tokens),
        next((number for number, token in enumerate(tokens, 1) if token.trained), None),
    )


def pieces(tokens: Sequence[Token]) -> list[Piece]:
    """The tokens of a row; of a very long row its start, the truncation point and its end."""
    shown: list[Piece] = []
    shown_to = 0
    for start, end in _spans(tokens):
        shown.append(Piece(start - shown_to, start + 1, tokens[start:end]))
        shown_to = end
    return shown


def _spans(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    total = len(tokens)
    if total <= _HEAD + 4 * _AROUND:
        return [(0, total)]
    cut = next((index for index, token in enumerate(tokens) if token.cut), 0)
    wanted = [(0, _HEAD), (cut - _AROUND, cut + _AROUND), (total - _AROUND, total)]
    spans: list[tuple[int, int]] = []
    for start, end in wanted:
        begin = max(start, spans[-1][1] if spans else 0)
        if end > begin:
            spans.append((begin, min(end, total)))
    return spans


def longest(store: TokenStore) -> int:
    """The longest row, from 1. The data set has rows."""
    return int(np.argmax(store.lengths)) + 1


def most_truncated(store: TokenStore, limit: int) -> int | None:
    """The row, from 1, with the most tokens with loss beyond `limit`; None if no row has any."""
    lost = store.trained_beyond(limit)
    return int(np.argmax(lost)) + 1 if lost.any() else None


def next_untrained(store: TokenStore, limit: int, row: int) -> int | None:
    """The next row, from 1 and wrapping around, after `row` that has tokens but none with loss within `limit`."""
    first = store.first_trained
    rows = np.flatnonzero((store.lengths > 0) & ((first < 0) | (first >= limit)))
    if not len(rows):
        return None
    later = rows[rows >= row]
    return int(later[0] if len(later) else rows[0]) + 1


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

"""A row of a tokenized data set: rows to go to, counts of its tokens, and what is shown of a very long one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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

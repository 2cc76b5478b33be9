"""Rows of token stores as the tasks other than plain language modelling take them. Each view has `rows`, the places in the file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data import Tokens, TokenView, labelled
from training.order import Integers
from training.token_store import TokenStore


class ChunkView:
    """Whole texts, none of them cut off: a row longer than `max_length` is several, and every token carries loss."""

    def __init__(self, store: TokenStore, rows: Integers, max_length: int) -> None:
        self.rows = rows
        self._store, self._limit = store, max_length
        whole = store.lengths[rows]
        counts = -(-whole // max_length)
        # A chunk of one token has nothing to predict.
        counts -= (whole % max_length == 1) & (counts > 1)
        self._row_of = np.repeat(np.arange(len(rows)), counts)
        self._chunk_of = np.arange(len(self._row_of)) - np.repeat(np.cumsum(counts) - counts, counts)

    @property
    def num_rows(self) -> int:
        return len(self._row_of)

    @property
    def lengths(self) -> Integers:
        """Tokens a chunk."""
        whole = self._store.lengths[self.rows[self._row_of]]
        lengths: Integers = np.minimum(whole - self._chunk_of * self._limit, self._limit)
        return lengths

    def __getitem__(self, index: int) -> Tokens:
        tokens, trained = self._store.row(int(self.rows[self._row_of[index]]))
        start = int(self._chunk_of[index]) * self._limit
        part = slice(start, start + self._limit)
        return labelled(tokens[part], trained[part], train_on_prompt=True)


@dataclass(frozen=True)
class PairView:
    """Preference pairs: the prompt with each answer, whose tokens alone carry loss."""

    chosen: TokenView
    rejected: TokenView

    @property
    def rows(self) -> Integers:
        return self.chosen.rows

    @property
    def num_rows(self) -> int:
        return self.chosen.num_rows

    @property
    def lengths(self) -> Integers:
        """Tokens of the longer half."""
        return np.maximum(self.chosen.lengths, self.rejected.lengths)

    def __getitem__(self, index: int) -> dict[str, Tokens]:
        return {"chosen": self.chosen[index], "rejected": self.rejected[index]}


@dataclass(frozen=True)
class TargetView:
    """Sources and their targets, for a model of an encoder and a decoder."""

    source: TokenView
    target: TokenView

    @property
    def rows(self) -> Integers:
        return self.source.rows

    @property
    def num_rows(self) -> int:
        return self.source.num_rows

    @property
    def lengths(self) -> Integers:
        """Tokens of the longer side."""
        return np.maximum(self.source.lengths, self.target.lengths)

    def __getitem__(self, index: int) -> Tokens:
        return {"input_ids": self.source[index]["input_ids"], "labels": self.target[index]["input_ids"]}


@dataclass(frozen=True)
class LabelView:
    """Rows with one number each: whether an answer is wanted, or the class of a text."""

    tokens: TokenView
    labels: NDArray[np.int64]
    """One for every row of the file."""
    uncut: TokenView | None = None
    """The same rows whole, where the batch pairs a row's prompt with another row's answer."""

    @property
    def rows(self) -> Integers:
        return self.tokens.rows

    @property
    def num_rows(self) -> int:
        return self.tokens.num_rows

    @property
    def lengths(self) -> Integers:
        return self.tokens.lengths

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {**self.tokens[index], "label": int(self.labels[self.rows[index]])}
        return row | {"whole": self.uncut[index]["input_ids"]} if self.uncut else row


View = TokenView | ChunkView | PairView | TargetView | LabelView


def file_rows(view: View, indices: list[int]) -> list[int]:
    """The rows of the file, counted from 1, that these of a view are or are parts of."""
    places = view._row_of[indices] if isinstance(view, ChunkView) else np.asarray(indices, np.int64)
    return [int(row) + 1 for row in view.rows[places]]

"""Rows of token stores, truncated and labeled for a task. Each view has `rows`, their numbers in the data."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.tokens.lengths import chunks
from training.tokens.order import Integers
from training.tokens.store import Store

IGNORED = -100  # the label that cross-entropy ignores
WEIGHTS = "loss_weights"
"""The entry of a row, and of a batch, with the loss weight of each token; absent if the data has no weights."""
Tokens = dict[str, NDArray[Any]]


class TokenView:
    """Some rows of a store, each truncated to `max_length`."""

    def __init__(self, store: Store, rows: Integers, max_length: int, *, train_on_prompt: bool) -> None:
        self.rows = rows
        self._store, self._limit, self._all = store, max_length, train_on_prompt

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Integers:
        """Tokens of each row, after truncation."""
        return np.minimum(self._store.lengths[self.rows], self._limit)

    def __getitem__(self, index: int) -> Tokens:
        """Returns `input_ids`, and `labels`: the token itself where it carries loss, IGNORED elsewhere; and WEIGHTS, if any."""
        row, limit = int(self.rows[index]), self._limit
        tokens, trained = self._store.row(row)
        weights = None if self._all else self._store.weights_of(row)
        kept = None if weights is None else weights[:limit]
        return labeled(tokens[:limit], trained[:limit], train_on_prompt=self._all, weights=kept)


@dataclass(frozen=True)
class TokenList:
    """Some rows of a file in memory, with their places in the data."""

    rows: Integers
    tokens: list[Tokens]

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[index]


def labeled(
    tokens: NDArray[np.int32],
    trained: NDArray[np.bool_],
    *,
    train_on_prompt: bool,
    weights: NDArray[np.float32] | None = None,
) -> Tokens:
    """Returns a row as the collators take it: `input_ids`, `labels` and, if given, WEIGHTS."""
    labels = tokens if train_on_prompt else np.where(trained, tokens, np.int32(IGNORED))
    row: Tokens = {"input_ids": np.array(tokens), "labels": np.array(labels)}
    return row if weights is None else row | {WEIGHTS: weights}


class ChunkView:
    """Whole texts for pretraining: a row longer than `max_length` becomes several chunks, and every token carries loss."""

    def __init__(self, store: Store, rows: Integers, max_length: int) -> None:
        self.rows = rows
        self._store, self._limit = store, max_length
        self._row_of, self._chunk_of, self._lengths = chunks(store.lengths[rows], max_length)

    @property
    def num_rows(self) -> int:
        return len(self._row_of)

    @property
    def lengths(self) -> Integers:
        """Tokens of each chunk."""
        return self._lengths

    def __getitem__(self, index: int) -> Tokens:
        tokens, trained = self._store.row(int(self.rows[self._row_of[index]]))
        start = int(self._chunk_of[index]) * self._limit
        part = slice(start, start + self._limit)
        return labeled(tokens[part], trained[part], train_on_prompt=True)


@dataclass(frozen=True)
class _TwoParts:
    """Rows of two parts each."""

    first: TokenView
    second: TokenView

    @property
    def rows(self) -> Integers:
        return self.first.rows

    @property
    def num_rows(self) -> int:
        return self.first.num_rows

    @property
    def lengths(self) -> Integers:
        """Tokens of the longer part of each row."""
        return np.maximum(self.first.lengths, self.second.lengths)


class PairView(_TwoParts):
    """Preference pairs: the prompt with the chosen and with the rejected answer; only answer tokens carry loss."""

    def __getitem__(self, index: int) -> dict[str, Tokens]:
        return {"chosen": self.first[index], "rejected": self.second[index]}


class TargetView(_TwoParts):
    """Sources and their targets, for an encoder-decoder model."""

    def __getitem__(self, index: int) -> Tokens:
        return {"input_ids": self.first[index]["input_ids"], "labels": self.second[index]["input_ids"]}


class LabelView(TokenView):
    """Rows with one label each: 1 for a desirable and 0 for an undesirable answer, or the class of a text.

    `labels` has one for each row of the data. With `whole`, rows also have their tokens before truncation, for batches that pair a
    row's prompt with another row's answer.
    """

    def __init__(
        self, store: Store, rows: Integers, max_length: int, labels: NDArray[np.int64], *, whole: bool = False
    ) -> None:
        super().__init__(store, rows, max_length, train_on_prompt=False)
        self._labels, self._whole = labels, whole

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.rows[index])
        row = {**super().__getitem__(index), "label": int(self._labels[number])}
        return row | {"whole": np.array(self._store.row(number)[0])} if self._whole else row


class SampleView(TokenView):
    """Prompts, each `samples` times in succession: an index is that of a sample, its prompt is number index // samples."""

    def __init__(self, store: Store, prompts: Integers, max_length: int, *, samples: int) -> None:
        super().__init__(store, np.repeat(prompts, samples), max_length, train_on_prompt=True)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns `input_ids`, `labels`, and the numbers of the sample and of its row in the data."""
        return {**super().__getitem__(index), "sample": index, "row": int(self.rows[index])}


View = TokenView | ChunkView | PairView | TargetView | LabelView


def rows_behind(view: View, indices: Any = slice(None)) -> Integers:
    """Returns the rows of the data, from 0, behind some or all indices of a view."""
    rows: Integers = (view.rows[view._row_of] if isinstance(view, ChunkView) else view.rows)[indices]
    return rows

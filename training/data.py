"""The rows of a token store as the trainer takes them: cut to the maximum length, with a label for every token, in batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from training.order import Integers, Order, padded, turns
from training.token_store import TokenStore

IGNORED = -100  # the label that cross-entropy leaves out

Tokens = dict[str, NDArray[np.int32]]


class TokenView:
    """Some rows of a store, each cut at its end to `max_length`."""

    def __init__(self, store: TokenStore, rows: Integers, max_length: int, *, train_on_prompt: bool) -> None:
        self.rows = rows
        self._store, self._limit, self._all = store, max_length, train_on_prompt

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Integers:
        """Tokens a row, cut."""
        return np.minimum(self._store.lengths[self.rows], self._limit)

    def __getitem__(self, index: int) -> Tokens:
        """`input_ids`, and `labels` that repeat the token where it carries loss and are IGNORED elsewhere."""
        tokens, trained = self._store.row(int(self.rows[index]))
        return labelled(tokens[: self._limit], trained[: self._limit], train_on_prompt=self._all)


@dataclass(frozen=True)
class TokenList:
    """Some rows of a file in memory, with their place in it."""

    rows: Integers
    tokens: list[Tokens]

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[index]


def labelled(tokens: NDArray[np.int32], trained: NDArray[np.bool_], *, train_on_prompt: bool) -> Tokens:
    """A row as the collator takes it."""
    labels = tokens if train_on_prompt else np.where(trained, tokens, np.int32(IGNORED))
    return {"input_ids": np.array(tokens), "labels": np.array(labels)}


class Rows(Protocol):
    """Rows by their number from 0."""

    @property
    def num_rows(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class TokenDataset(Dataset[Any]):
    """A view as torch takes it: its rows, or packs of them where its `order` hands those out."""

    def __init__(self, view: Rows, order: Order | None = None) -> None:
        self._view, self.order = view, order

    def __len__(self) -> int:
        return len(self.order) if self.order else self._view.num_rows

    def __getitem__(self, index: int | Integers) -> Any:
        """A row, or the rows of a pack."""
        return [self._view[int(row)] for row in index] if np.ndim(index) else self._view[int(index)]  # type: ignore[union-attr]


class EpochSampler(Sampler[Any]):
    """Lathe's own order of rows or packs (training/order.py) in the place of torch's, the same on every rank."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.epoch = 0

    @property
    def units(self) -> int:
        """Rows or packs in an epoch."""
        return len(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order.epoch(self.epoch))


@dataclass(frozen=True)
class InOrder:
    """Rows as they stand, in every epoch."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def epoch(self, _: int) -> Integers:
        return np.arange(self.rows)


class RankBatches(Sampler[list[Any]]):
    """The micro batches of one rank in the order of an epoch: batch after batch goes to rank after rank.

    All ranks take equally many micro batches. A rank without rows in the last one (`ends_empty`) gets the first row or pack
    of the epoch again; it must carry no weight.
    """

    def __init__(self, order: Order, micro_batch: int, rank: int = 0, world: int = 1) -> None:
        self._order, self._size, self._rank, self._world = order, micro_batch, rank, world
        self.epoch = 0

    @property
    def units(self) -> int:
        """Rows or packs in an epoch."""
        return len(self._order)

    @property
    def ends_empty(self) -> bool:
        """True if this rank has no rows of its own in its last micro batch."""
        return self._start(len(self) - 1) >= len(self._order)

    def __len__(self) -> int:
        return turns(len(self._order), self._size, self._world)

    def __iter__(self) -> Iterator[list[Any]]:
        units = self._order.epoch(self.epoch)
        for turn in range(len(self)):
            start = self._start(turn)
            yield list(units[start : start + self._size]) or [units[0]]

    def _start(self, turn: int) -> int:
        return (turn * self._world + self._rank) * self._size


class Collator:
    """Pads rows to the longest of a batch: input_ids, attention_mask and labels of shape (rows, length)."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = pad_token_id

    def __call__(self, rows: list[Tokens]) -> dict[str, torch.Tensor]:
        shape = (len(rows), padded(max(len(row["input_ids"]) for row in rows)))
        batch = {
            "input_ids": torch.full(shape, self._pad),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "labels": torch.full(shape, IGNORED),
        }
        for index, row in enumerate(rows):
            size = len(row["input_ids"])
            batch["input_ids"][index, :size] = torch.as_tensor(row["input_ids"])
            batch["attention_mask"][index, :size] = 1
            batch["labels"][index, :size] = torch.as_tensor(row["labels"])
        return batch

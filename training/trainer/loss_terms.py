"""A loss as a sum of terms, and the weights with which those of micro batches make the loss of an optimizer step.

Each term is a mean over items of one kind: tokens with loss, rows, or micro batches. transformers would average the losses of micro
batches instead, and relies on the model to divide by `num_items_in_batch`, which many models ignore.

Notation: a step has M micro batches on all ranks, R of them not empty. Micro batch i has n_i items of a kind (with loss weights,
the sum of their weights), of which there are N in all. A term of the step is sum_i S_i / N, where S_i is the (weighted) sum over
the items of micro batch i; one over micro batches is sum_i A_i / R. The Trainer divides by accumulation and averages over ranks,
that is, divides by M. So the mean S_i / n_i has the weight n_i M / N, and A_i the weight M / R.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

TOKENS, ROWS = "tokens", "rows"
"""Kinds of items over which a loss is a mean. An objective may have others."""
BATCHES = "micro batches"
"""The kind of what a loss adds once for each micro batch, such as a router's loss. Evaluations omit it."""


class LossTerm(NamedTuple):
    """A part of the loss of a micro batch: its mean over the items of one kind in this micro batch, of shape ().

    A step has `weight` times its mean over these items of the global batch.
    """

    mean: torch.Tensor
    over: str
    weight: float = 1.0

    @property
    def value(self) -> torch.Tensor:
        """The weighted mean, of shape ()."""
        return self.mean if self.weight == 1 else self.weight * self.mean


class ItemLosses(NamedTuple):
    """The loss of each item of a micro batch, in the order of the rows, and its weight if it has one; both of shape (items,)."""

    losses: torch.Tensor
    weights: torch.Tensor | None = None


class LossTerms(NamedTuple):
    """The terms whose sum is the loss of a micro batch. `of_items` computes the loss of each item, for those of data sets."""

    terms: tuple[LossTerm, ...]
    of_items: Callable[[], ItemLosses] | None = None

    def total(self, weights: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Returns the sum of the terms, of shape (); `weights` are those of the micro batch in its step, by kind of items."""
        parts = [one.value if weights is None else one.value * weights[one.over] for one in self.terms]
        return sum(parts[1:], parts[0])


class StepWeights:
    """The weights of this rank's micro batches in one optimizer step, for the terms of each kind.

    `counts` are the items of this rank's micro batches by kind, of shape (accumulation,), 0 for an empty one; `totals` those of
    all ranks, of shape (), and R under BATCHES; `micro_batches` is M. Items of the first kind say whether a micro batch is empty.
    """

    def __init__(
        self, counts: Mapping[str, torch.Tensor], totals: Mapping[str, torch.Tensor], micro_batches: int
    ) -> None:
        # Loss weights may add up to less than 1; only an empty step needs another divisor.
        sums = {kind: torch.where(total > 0, total, 1) for kind, total in totals.items()}
        first = next(iter(counts))
        self.items_per_batch = sums[first] / sums[BATCHES]
        """N / R, of shape (): a model that divides by it in place of n_i returns a term over BATCHES."""
        weights = {kind: values / sums[kind] * micro_batches for kind, values in counts.items()}
        weights[BATCHES] = (counts[first] > 0) * (micro_batches / sums[BATCHES])
        steps = zip(*(values.unbind() for values in weights.values()), strict=True)
        self._weights = deque(dict(zip(weights, values, strict=True)) for values in steps)

    @property
    def next(self) -> dict[str, torch.Tensor]:
        """The weights of the next micro batch by kind, of shape ()."""
        return self._weights[0]

    @property
    def counts(self) -> torch.Tensor:
        """True if the next micro batch is not empty, of shape ()."""
        return self.next[BATCHES] > 0

    def advance(self) -> None:
        """Goes to the next micro batch."""
        self._weights.popleft()

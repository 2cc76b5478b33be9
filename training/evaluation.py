"""Evaluation: means over tokens or rows, as the training loss is one, and not over batches of unlike size."""

import math

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from training.data import IGNORED, RankBatches, Tokens

_LARGEST_EXPONENT = 709  # of a float


class EvenRows(Dataset[Tokens]):
    """Rows filled up to a multiple of the global batch with rows that carry no loss, for accelerate's loader.

    It would fill up the last batches with the first rows again, which would count twice.
    """

    def __init__(self, rows: Dataset[Tokens], multiple: int) -> None:
        self._rows, self._count = rows, len(rows)  # type: ignore[arg-type]
        self._length = -(-self._count // multiple) * multiple

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Tokens:
        if index < self._count:
            return self._rows[index]
        shortest = self._rows[self._count - 1]["input_ids"][:2]
        return {"input_ids": shortest, "labels": np.full_like(shortest, IGNORED)}


def perplexity(loss: float) -> float:
    """e to the mean loss per token: between how many equally likely tokens the model hesitates."""
    return math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf


def predicted(inputs: dict[str, torch.Tensor], *, shifted: bool) -> torch.Tensor:
    """The labels of a batch that some logits predict, IGNORED among them. `shifted`: a token is predicted by the one before."""
    if "shift_labels" in inputs:
        return inputs["shift_labels"]
    return inputs["labels"][:, 1:] if shifted else inputs["labels"]


def token_loss(logits: torch.Tensor, inputs: dict[str, torch.Tensor], *, shifted: bool) -> torch.Tensor:
    """Mean cross-entropy of the tokens of a batch, without what a model or adapter adds to its loss; NaN for no token.

    `logits` have the shape (rows, length, vocabulary), or (1, kept tokens, vocabulary) beside `shift_labels`.
    """
    labels = predicted(inputs, shifted=shifted)
    if "shift_labels" not in inputs:
        logits = logits[:, -inputs["labels"].shape[1] :]  # prompt tuning puts virtual tokens before them
        logits = logits[:, :-1] if shifted else logits
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten().to(logits.device), ignore_index=IGNORED)


Means = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Of a batch by name: a mean, and the number of items that it is the mean of; both of shape ()."""


class ItemMean:
    """Means over the items, tokens or rows, of all batches and ranks.

    A rank has `batches` of them; the last counts nothing where `shares` says that it is empty.
    """

    def __init__(self, device: torch.device, batches: int, shares: RankBatches | None = None) -> None:
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._device, self._left = device, batches
        self._ends_empty = shares is not None and shares.ends_empty
        self._sums: dict[str, torch.Tensor] = {}

    @property
    def repeats(self) -> bool:
        """Whether the next batch is a repeated row that counts nothing."""
        return self._ends_empty and self._left == 1

    def add(self, means: Means) -> None:
        """The means of the next batch. A batch without an item has no mean (0/0)."""
        repeats, self._left = self.repeats, self._left - 1
        for name, (mean, count) in means.items():
            items = count.to(self._device, self._dtype) * (not repeats)
            part = torch.where(items > 0, mean.to(items) * items, 0.0)
            self._sums[name] = self._sums.get(name, torch.zeros(2).to(items)) + torch.stack([part, items])

    def values(self) -> dict[str, float]:
        """The means over all ranks; a collective where there are several. NaN where there is no item."""
        means = {}
        for name, sums in self._sums.items():
            if dist.is_initialized() and dist.get_world_size() > 1:
                dist.all_reduce(sums)
            total, count = sums.tolist()
            means[name] = total / count if count else math.nan
        return means

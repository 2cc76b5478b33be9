"""Evaluation losses and metrics as means over tokens or rows, like the training loss, not over batches."""

import math

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from training.batches.samplers import RankBatches
from training.batches.views import IGNORED, Tokens

_LARGEST_EXPONENT = 709  # of a float


class EvenRows(Dataset[Tokens]):
    """Pads a data set to a multiple of the global batch size with rows without loss tokens.

    accelerate's loader would repeat the first rows instead, which would then count twice.
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
    """Returns e to the mean loss per token, infinity on overflow."""
    return math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf


def predicted(inputs: dict[str, torch.Tensor], *, shifted: bool) -> torch.Tensor:
    """Returns the labels that the logits of a batch predict, including IGNORED ones.

    `shifted` means that the logits at each token predict the next token.
    """
    if "shift_labels" in inputs:
        return inputs["shift_labels"]
    return inputs["labels"][:, 1:] if shifted else inputs["labels"]


def token_loss(logits: torch.Tensor, inputs: dict[str, torch.Tensor], *, shifted: bool) -> torch.Tensor:
    """Returns the mean cross-entropy over the tokens of a batch, without auxiliary losses; NaN if no token carries loss.

    `logits` have the shape (rows, length, vocabulary), or with `shift_labels` (1, tokens with loss, vocabulary).
    """
    labels = predicted(inputs, shifted=shifted)
    if "shift_labels" not in inputs:
        logits = logits[:, -inputs["labels"].shape[1] :]  # drops the virtual tokens of prompt tuning
        logits = logits[:, :-1] if shifted else logits
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten().to(logits.device), ignore_index=IGNORED)


Means = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By name: a batch's mean, and the number of items in the mean; both of shape ()."""


class ItemMean:
    """Computes means over the items (tokens or rows) of all batches and ranks.

    A rank has `batches` batches. If `shares.ends_empty`, its last one is a repeated row and does not count.
    """

    def __init__(self, device: torch.device, batches: int, shares: RankBatches | None = None) -> None:
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._device, self._left = device, batches
        self._ends_empty = shares is not None and shares.ends_empty
        self._sums: dict[str, torch.Tensor] = {}

    @property
    def repeats(self) -> bool:
        """True if the next batch is a repeated row that does not count."""
        return self._ends_empty and self._left == 1

    def add(self, means: Means) -> None:
        """Adds the means of the next batch. The mean of a batch without items (0/0) is ignored."""
        repeats, self._left = self.repeats, self._left - 1
        for name, (mean, count) in means.items():
            items = count.to(self._device, self._dtype) * (not repeats)
            total = torch.where(items > 0, mean.to(items) * items, 0.0)
            self._sums[name] = self._sums.get(name, torch.zeros(2).to(items)) + torch.stack([total, items])

    def values(self) -> dict[str, float]:
        """Returns the means over all ranks, NaN without items. A collective if there are several ranks."""
        means = {}
        for name, sums in self._sums.items():
            if dist.is_initialized() and dist.get_world_size() > 1:
                dist.all_reduce(sums)
            total, count = sums.tolist()
            means[name] = total / count if count else math.nan
        return means

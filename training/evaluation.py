"""The evaluation loss: a mean over tokens, as the training loss is, and not over batches of unlike length."""

import math

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from training.data import IGNORED, Tokens

_LARGEST_EXPONENT = 709  # of a float


class EvenRows(Dataset[Tokens]):
    """Rows filled up to a multiple of the global batch with rows that carry no loss.

    Otherwise accelerate fills up the last batches with the first rows again, which would count twice.
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


class TokenMean:
    """Adds up batch losses by the tokens behind them."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    def add(self, loss: torch.Tensor, labels: torch.Tensor) -> None:
        """`loss` is the mean over the tokens of a batch whose `labels`, of shape (rows, length), are not IGNORED."""
        count = (labels != IGNORED).sum().to(self._sums)
        # A batch without such a token has no mean (0/0).
        self._sums += torch.stack([torch.where(count > 0, loss.to(self._sums) * count, 0.0), count])

    def value(self) -> float:
        """The mean over all ranks; a collective where there are several. NaN where no token carries loss."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(self._sums)
        total, count = self._sums.tolist()
        return float(total / count) if count else float("nan")

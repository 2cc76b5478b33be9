"""Evaluation losses and metrics as means over tokens or rows, like the training loss, not over batches."""

import math

import torch
from torch.nn.functional import cross_entropy

from training.batches.sets import HeldOutBatches, Sets
from training.batches.views import IGNORED, WEIGHTS
from training.ranks.distributed import reduce_over_ranks

_LARGEST_EXPONENT = 709  # of a float
_PART_TOKENS = 256  # whose logits are copied together


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


def predicted_weights(inputs: dict[str, torch.Tensor], *, shifted: bool) -> torch.Tensor | None:
    """Returns the loss weights of `predicted`, of the same shape; None if the data has none."""
    if WEIGHTS not in inputs:
        return None
    weights = inputs[WEIGHTS] if "shift_labels" in inputs or not shifted else inputs[WEIGHTS][:, 1:]
    return torch.where(predicted(inputs, shifted=shifted) != IGNORED, weights, 0.0)


def token_loss(logits: torch.Tensor, inputs: dict[str, torch.Tensor], *, shifted: bool) -> torch.Tensor:
    """Returns the mean cross-entropy over the tokens of a batch, without auxiliary losses; NaN if no token carries loss.

    With loss weights w it is sum(w * loss) / sum(w). `logits` have the shape (rows, length, vocabulary), or with `shift_labels`
    (1, tokens with loss, vocabulary).
    """
    labels = predicted(inputs, shifted=shifted)
    if "shift_labels" not in inputs:
        logits = logits[:, -inputs["labels"].shape[1] :]  # drops the virtual tokens of prompt tuning
        logits = logits[:, :-1] if shifted else logits
    logits, labels = logits.flatten(0, 1).float(), labels.flatten().to(logits.device)
    weights = predicted_weights(inputs, shifted=shifted)
    if weights is None:
        return cross_entropy(logits, labels, ignore_index=IGNORED)
    weights = weights.flatten().to(logits)
    losses = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


Means = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By name: a batch's mean, and the number of items in the mean; both of shape ()."""


class ItemMean:
    """Computes means over the items (tokens or rows) of all batches and ranks, and of several data sets those of each.

    A rank has `batches` batches. If `held_out.ends_empty`, its last one is a repeated row and does not count.
    """

    def __init__(
        self, device: torch.device, batches: int, held_out: HeldOutBatches | None = None, num_sets: int = 1
    ) -> None:
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._device, self._batches, self._done = device, batches, 0
        self._held_out, self._num_sets = held_out, num_sets
        self._sums: dict[str, torch.Tensor] = {}

    @property
    def repeats(self) -> bool:
        """True if the next batch is a repeated row that does not count."""
        return self._held_out is not None and self._held_out.ends_empty and self._done == self._batches - 1

    def add(self, means: Means) -> None:
        """Adds the means of the next batch. The mean of a batch without items (0/0) is ignored."""
        repeats, place = self.repeats, self._held_out.set_of(self._done) if self._held_out else 0
        self._done += 1
        for name, (mean, count) in means.items():
            items = count.to(self._device, self._dtype) * (not repeats)
            total = torch.where(items > 0, mean.to(items) * items, 0.0)
            sums = self._sums.setdefault(name, torch.zeros(self._num_sets, 2).to(items))
            sums[place] += torch.stack([total, items])

    def values(self) -> list[dict[str, float]]:
        """Returns the means over all ranks, then those of each data set; NaN without items. A collective on several ranks.

        A loss given in parts, named loss and loss_..., is their sum.
        """
        means: list[dict[str, float]] = [{} for _ in range(1 + self._num_sets)]
        for name, sums in self._sums.items():
            reduce_over_ranks(sums)
            for place, (total, count) in enumerate([sums.sum(0).tolist(), *sums.tolist()]):
                means[place][name] = total / count if count else math.nan
        for values in means:
            for name in [name for name in values if name.startswith("loss_")]:
                values["loss"] += values.pop(name)
        return means


class SetLosses:
    """Means of the training losses of several data sets over their items, since the last report."""

    def __init__(self, sets: Sets, device: torch.device) -> None:
        self._names = sets.names
        self._sums = torch.zeros(2, len(sets.names), device=device, dtype=torch.float32)

    @torch.no_grad()
    def add(
        self, losses: torch.Tensor, sets: torch.Tensor, weight: torch.Tensor, items: torch.Tensor | None = None
    ) -> None:
        """Adds the losses of a micro batch's items and their sets, both of shape (items,); nothing where `weight` is 0.

        `items` are the loss weights of the items, of the same shape.
        """
        counts = (weight != 0).to(losses).expand_as(losses)
        counts = counts if items is None else counts * items.to(losses)
        self._sums[0].index_add_(0, sets, losses * counts)
        self._sums[1].index_add_(0, sets, counts)

    def take(self) -> dict[str, float]:
        """Returns the means by set over all ranks, without sets that had no items, and begins anew. A collective on several
        ranks."""
        sums, counts = reduce_over_ranks(self._sums).tolist()
        self._sums.zero_()
        return {name: total / count for name, total, count in zip(self._names, sums, counts, strict=True) if count}


@torch.no_grad()
def item_losses(logits: torch.Tensor, inputs: dict[str, torch.Tensor], *, shifted: bool) -> torch.Tensor:
    """Returns the cross-entropy of each token with loss of a batch, of shape (items,), in the order of the rows.

    `logits` and `shifted` as in `token_loss`. The logits are copied to fp32 in small parts.
    """
    labels = predicted(inputs, shifted=shifted)
    if "shift_labels" in inputs:
        labels = labels.reshape(1, -1)
    else:
        logits = logits[:, -inputs["labels"].shape[1] :]
    rows, places = (torch.split(part, _PART_TOKENS) for part in (labels != IGNORED).nonzero(as_tuple=True))
    parts = [
        cross_entropy(logits[row, place].float(), labels[row, place].to(logits.device), reduction="none")
        for row, place in zip(rows, places, strict=True)
    ]
    return torch.cat(parts)

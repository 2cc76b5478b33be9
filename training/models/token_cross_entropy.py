"""Cross-entropy of a linear head without the logits of all tokens: the head is applied to some tokens at a time.

The gradient of each chunk's logits is computed with its loss and multiplied at once with the head's weight and input, so the
backward pass neither keeps nor recomputes logits: it scales two gradients (as in Hsu et al., "Liger Kernel", 2024, section 3.2).
Peak memory is that of one chunk's logits instead of tokens x vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch

_BLOCK_ELEMENTS = 2**24  # of the head's gradient, computed together in 16 bits


@dataclass(frozen=True)
class LogitTransform:
    """What a model does with the output of its head: multiply it by `scale`, then softcap it: c * tanh(logits / c)."""

    scale: float = 1.0
    softcap: float | None = None


def token_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    weights: torch.Tensor | None,
    transform: LogitTransform,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the (weighted) sum of the cross-entropy of all tokens, of shape (), and that of each token, without gradient.

    `hidden` has the shape (tokens, hidden size), `weight` (vocabulary, hidden size); `labels` and `weights` (tokens,). Both
    results are fp32. Products are computed in autocast's format if it is enabled, else in the weight's.
    """
    total, losses = _TokenCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, labels, weights, transform, chunk, torch.is_grad_enabled()
    )
    return total, losses


class _TokenCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        transform: LogitTransform,
        chunk: int,
        learns: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        with torch.autocast(kind, enabled=False):
            gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad[:3] if learns else (False,) * 3, chunk)
            head, offset = weight.to(dtype), None if bias is None else bias.to(dtype)
            losses = torch.empty(len(labels), dtype=torch.float32, device=hidden.device)
            for start in range(0, len(labels), chunk):
                part = slice(start, start + chunk)
                inputs = hidden[part].to(dtype)
                share = None if weights is None else weights[part].float()
                losses[part], scores = _chunk(inputs, head, offset, labels[part], share, transform, learns=learns)
                if scores is not None:
                    gradients.add(part, scores.to(dtype), inputs, head)
                del scores
        ctx.gradients = gradients
        ctx.mark_non_differentiable(losses)
        return (losses if weights is None else losses * weights.float()).sum(), losses

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        scaled = ctx.gradients.scaled(gradient)
        return *scaled, None, None, None, None, None


def _chunk(
    inputs: torch.Tensor,
    head: torch.Tensor,
    offset: torch.Tensor | None,
    labels: torch.Tensor,
    weights: torch.Tensor | None,
    transform: LogitTransform,
    *,
    learns: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the losses of a chunk's tokens and, if it `learns`, the gradient of the head's output: softmax less one-hot.

    Nearly all operations work in place on the fp32 logits, of shape (tokens, vocabulary).
    """
    scores = torch.nn.functional.linear(inputs, head, offset).float()
    if transform.scale != 1:
        scores.mul_(transform.scale)
    slope = None
    if transform.softcap:
        scores.div_(transform.softcap).tanh_()
        slope = 1 - scores.square() if learns else None
        scores.mul_(transform.softcap)
    places = labels[:, None]
    target, highest = scores.gather(1, places)[:, 0], scores.amax(1, keepdim=True)
    total = scores.sub_(highest).exp_().sum(1, keepdim=True)
    losses = total[:, 0].log() + highest[:, 0] - target
    if not learns:
        return losses, None
    scores.div_(total).scatter_add_(1, places, torch.full_like(target[:, None], -1))
    for factor in (slope, None if weights is None else weights[:, None]):
        if factor is not None:
            scores.mul_(factor)
    if transform.scale != 1:
        scores.mul_(transform.scale)
    return losses, scores


class _Gradients:
    """The gradients of the sum of losses by hidden states, weight and bias; None where not `needed`.

    With 16-bit weights the head's gradient is summed over chunks in fp32.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        needed: tuple[bool, ...],
        chunk: int,
    ) -> None:
        summed = torch.float32 if len(hidden) > chunk else weight.dtype
        self._dtypes = (hidden.dtype, weight.dtype, weight.dtype)
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=summed) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=summed) if bias is not None and needed[2] else None

    def add(self, part: slice, scores: torch.Tensor, inputs: torch.Tensor, head: torch.Tensor) -> None:
        """Adds those of a chunk: `scores` is the gradient of the head's output."""
        if self.hidden is not None:
            self.hidden[part] = scores @ head
        if self.bias is not None:
            self.bias += scores.sum(0)
        if self.weight is None:
            return
        if self.weight.dtype == scores.dtype:
            self.weight.addmm_(scores.T, inputs)
            return
        rows = max(1, _BLOCK_ELEMENTS // inputs.shape[1])
        for block, columns in zip(torch.split(self.weight, rows), torch.split(scores, rows, 1), strict=True):
            block.add_(columns.T @ inputs)

    def scaled(self, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the three gradients multiplied by `factor`, of shape (), and forgets them."""
        gradients = (self.hidden, self.weight, self.bias)
        self.hidden = self.weight = self.bias = None
        return tuple(
            None if gradient is None else gradient.mul_(factor).to(dtype)
            for gradient, dtype in zip(gradients, self._dtypes, strict=True)
        )

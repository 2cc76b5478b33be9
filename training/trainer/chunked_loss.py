"""Lets a model's head return the loss of its tokens in place of their logits (training/models/token_cross_entropy.py).

The loss is computed within the head's own forward, where ZeRO-3 and FSDP have gathered its weight, and takes the place of the
logits in the model's output, through which their hooks find the gradient. The model gets no labels, so it computes no loss itself.
"""

from dataclasses import dataclass
from typing import Any

import torch

from training.batches.layout import base_of
from training.batches.views import IGNORED, WEIGHTS
from training.config.choices import ChunkedLoss, Precision
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.token_cross_entropy import LogitTransform, token_cross_entropy
from training.reports.report import Report
from training.rules.memory import chunk_tokens, wants_chunks
from training.tables import only
from training.trainer.evaluation import predicted, predicted_weights

TOLERANCE = only({Precision.FP32: 1e-4, Precision.FP16: 1e-2, Precision.BF16: 3e-2})
"""Largest relative difference from the model's own loss on the test batch; a 16-bit model rounds its logits before the loss."""
_NOT_FOR_THE_MODEL = ("labels", "shift_labels", "num_items_in_batch", WEIGHTS)


@dataclass
class _Batch:
    """The labels of a forward pass, with what its head returned: the sum, and the loss of each token."""

    inputs: dict[str, torch.Tensor]
    shifted: bool
    total: torch.Tensor | None = None
    losses: torch.Tensor | None = None

    def labeled(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns hidden states, labels and loss weights of the tokens with loss, in the order of the rows."""
        labels, weights = (find(self.inputs, shifted=self.shifted) for find in (predicted, predicted_weights))
        assert labels is not None
        if "shift_labels" in self.inputs:
            return hidden.flatten(0, 1), labels, weights
        rows, places = (labels != IGNORED).nonzero(as_tuple=True)
        return hidden[rows, places], labels[rows, places], None if weights is None else weights[rows, places]


class ChunkedHead:
    """The loss of `model` in chunks of tokens. Make it before the model is wrapped, and call `place` afterwards.

    Only calls of `outputs` are chunked; all others of the model, such as those of generation, return logits.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        base = base_of(model)
        head = linear_head(model)
        assert head is not None
        self._base, self._head = base, head
        self._batch: _Batch | None = None
        self._transform = logit_transform(base.config)
        self._forward = head.forward
        head.forward = self._project  # type: ignore[method-assign, assignment]
        self._hooks = [model.register_forward_hook(self._return_total)]

    @property
    def vocabulary(self) -> int:
        """The number of logits of a token."""
        return self._head.out_features

    @property
    def chunk(self) -> int:
        """The number of tokens of a chunk."""
        return chunk_tokens(self.vocabulary)

    def place(self) -> None:
        """Adds the hook that must run after those of ZeRO-3 and FSDP."""
        self._hooks.append(self._head.register_forward_hook(self._take_total))

    def remove(self) -> None:
        """Gives the model its own head back."""
        self._head.forward = self._forward  # type: ignore[method-assign]
        for hook in self._hooks:
            hook.remove()

    def outputs(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Returns the model's outputs for a batch with labels: `logits` is the (weighted) sum of the tokens' losses, and
        `token_losses` has each, of shape (items,), in the order of the rows."""
        arguments = {name: value for name, value in inputs.items() if name not in _NOT_FOR_THE_MODEL}
        shifted = not self._base.config.is_encoder_decoder
        if not shifted:
            arguments["decoder_input_ids"] = self._base.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])
        batch = self._batch = _Batch(inputs, shifted)
        try:
            outputs = model(**arguments)
        finally:
            self._batch = None
        outputs["token_losses"] = batch.losses
        return outputs

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._batch is None:
            return self._forward(hidden)
        states, labels, weights = self._batch.labeled(hidden)
        total, self._batch.losses = token_cross_entropy(
            states, self._head.weight, self._head.bias, labels, weights, self._transform, self.chunk
        )
        return total

    def _take_total(self, _: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor | None:
        """Returns empty logits, since the model may still scale them."""
        if self._batch is None:
            return None
        self._batch.total = output
        hidden: torch.Tensor = inputs[0]
        return hidden.new_zeros(len(hidden), 0, self.vocabulary)

    def _return_total(self, _: Any, __: Any, outputs: Any) -> None:
        if self._batch is not None:
            outputs["logits"] = self._batch.total


def make_chunked_head(config: RunConfig, model: torch.nn.Module, report: Report) -> ChunkedHead | None:
    """Returns the chunked loss of a run; None if its settings or its model exclude it.

    Raises:
        UserError: the configuration demands it, and the model's head does not support it.
    """
    if not wants_chunks(config, base_of(model).config.get_text_config(decoder=True).vocab_size):
        return None
    if linear_head(model) is None:
        refuse(config, report, "its head is not a plain linear module (an adapter on it, or quantized weights)")
        return None
    return ChunkedHead(model)


def refuse(config: RunConfig, report: Report, why: str) -> None:
    """Notes why the loss is not computed in chunks.

    Raises:
        UserError: the configuration demands it.
    """
    if config.chunked_loss is ChunkedLoss.ON:
        raise UserError("chunked_loss", "on", f"does not fit this model: {why}.", "Set chunked_loss to auto or off.")
    report.note(f"The loss is not computed in chunks of tokens, since the model does not support it: {why}.")


def linear_head(model: torch.nn.Module) -> torch.nn.Linear | None:
    """Returns the module that computes a model's logits, or its trained copy (modules_to_save); None if it is not plain linear."""
    head = base_of(model).get_output_embeddings()
    copies = getattr(head, "modules_to_save", None)
    if isinstance(copies, torch.nn.ModuleDict):
        head = copies[head.active_adapters[0]]
    return head if type(head) is torch.nn.Linear else None


def logit_transform(config: Any) -> LogitTransform:
    """Reads from a model's config what it does with its logits: Gemma softcaps them, Cohere and Falcon-H1 multiply them, Granite
    divides them. A model for which this is not all fails `agrees`."""
    text = config.get_text_config(decoder=True)
    divisor = getattr(text, "logits_scaling", None)
    factors = (getattr(text, name, None) for name in ("logit_scale", "lm_head_multiplier", "output_multiplier"))
    scale = next(
        (float(factor) for factor in factors if isinstance(factor, int | float)), 1 / divisor if divisor else 1.0
    )
    return LogitTransform(scale, getattr(text, "final_logit_softcapping", None))


def agrees(chunked: torch.Tensor, plain: torch.Tensor, precision: str) -> bool:
    """True if the loss in chunks is the model's own up to rounding; both have the shape ()."""
    return bool((chunked - plain).abs() <= TOLERANCE[Precision(precision)] * plain.abs())

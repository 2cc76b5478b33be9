"""The memory of a run with a chunked loss, offloaded activations or an optimizer in the backward pass, by formula. No torch."""

from dataclasses import dataclass, replace

from training.config.choices import Method, Strategy
from training.config.chunked_loss import chunk_tokens, wants_chunks
from training.config.name_values import as_names
from training.config.run_config import RunConfig
from training.forecast.formula.activations import Batch
from training.forecast.formula.sizes import Sizes
from training.model_info.shape import ModelShape

SOFTCAPS = ("gemma2",)
"""Families that cap logits and scores of attention by a tanh, whose result is saved."""
_STREAMED = 0.5  # of the copies to host memory, the share for which the GPU waits
_LAYER_BYTES = (
    34  # saved per token and unit of width in 16 bits (Korthikanti et al., 2022, equation 2, without the scores)
)


@dataclass(frozen=True)
class LossBytes:
    """Bytes of the loss: at the end of the forward pass, and at the beginning of the backward pass. `head` is the gradient of the
    head's weight, which a chunked loss computes in the forward pass."""

    forward: float
    backward: float
    head: float = 0.0


def chunked_loss_bytes(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> LossBytes | None:
    """What a chunked loss takes (training/models/token_cross_entropy.py); None if the run computes its loss at once.

    Forward: one chunk's logits in fp32 and, in 16 bits, in the compute format too; the head's weight in that format if it is
    stored in another; the hidden states of the tokens with loss and their gradient, which lives until the backward pass.
    """
    if not wants_chunks(config, shape.vocab):
        return None
    labeled = batch.labeled or batch.loss_tokens
    tokens = min(labeled, chunk_tokens(shape.vocab))
    # The slope of a softcap is another fp32 tensor, and the square it is made from.
    element = 12 if shape.model_type in SOFTCAPS else 4 if sizes.compute == 4 else 4 + sizes.compute
    chunk = tokens * shape.vocab * element
    matrix = shape.vocab * shape.hidden
    cast = sizes.compute * matrix if sizes.casts and sizes.gradient_format == 4 and config.method is Method.FULL else 0
    states = labeled * shape.hidden * sizes.stream
    format_ = sizes.compute if config.strategy is Strategy.FSDP else sizes.gradient_format  # that of the gathered head
    head = float(matrix * format_) if trains_head(config) else 0.0
    return LossBytes(chunk + cast + (1 if batch.flat else 2) * states, states, head)


def trains_head(config: RunConfig) -> bool:
    """True if the weight of the head is trained."""
    if config.method is Method.FULL and not config.trainable_layers:
        return True
    return bool({"lm_head", "embed_out"} & set(as_names(config.modules_to_save or "")))


def freed_in_backward(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Sizes:
    """The sizes with only the largest gradient if the optimizer steps in the backward pass."""
    if not config.steps_in_backward:
        return sizes
    linears = [linear.parameters for stack in shape.stacks for linear in stack.linears]
    largest = max(shape.table, shape.head, *linears) * sizes.gradient_format
    return replace(sizes, gradients=float(min(largest, sizes.gradients)))


def activation_copy_seconds(config: RunConfig, shape: ModelShape, tokens: float, bytes_: int, rate: float) -> float:
    """Seconds of a step in which the GPU waits for activations to and from host memory, at `rate` bytes per second."""
    if not config.offload_activations:
        return 0.0
    width = 1 if config.recomputes else _LAYER_BYTES / 2  # recomputed layers keep their input only
    return _STREAMED * 2 * shape.layers * tokens * shape.hidden * width * bytes_ / rate

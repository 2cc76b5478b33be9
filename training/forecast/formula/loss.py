"""The memory of logits and loss, computed at once or in chunks of tokens, and what the task changes of the model. No torch."""

from dataclasses import dataclass, replace

from training.config.choices import Method, Strategy, Task
from training.config.chunked_loss import chunk_tokens, wants_chunks
from training.config.run_config import RunConfig
from training.forecast.formula.activations import Batch
from training.forecast.formula.sizes import Sizes
from training.forecast.formula.trainable import trains_head
from training.model_info.shape import ModelShape

SOFTCAPS = ("gemma2",)
"""Families that cap logits and scores of attention by a tanh, whose result is saved."""
_VOCABULARY_CHUNK = 32_768
"""Vocabulary entries and tokens of a tile of trl's fused head (trl/trainer/utils.py, trl/kernels/chunked_logprob.py)."""
_TOKEN_CHUNK = 4096
_TILES_ON_CPU = 7.25
"""fp32 copies of a tile that its backward pass has at its peak without Triton; a mask of bytes is a quarter of one."""


@dataclass(frozen=True)
class LossBytes:
    """Bytes of the loss: at the end of the forward pass, and at the beginning of the backward pass. `head` is the gradient of the
    head's weight, which a chunked loss computes in the forward pass."""

    forward: float
    backward: float
    head: float = 0.0


def task_shape(config: RunConfig, shape: ModelShape) -> ModelShape:
    """The shape of the model that the task trains: a scoring model has no language model head."""
    if compares_answers(config):
        shape = replace(shape, dropout=0.0)
    return shape if config.task.generates else replace(shape, head=0)


def compares_answers(config: RunConfig) -> bool:
    """True for the tasks whose trainers in trl turn dropout off."""
    return config.task in (Task.DPO, Task.KTO, Task.ORPO, Task.REWARD)


def loss_bytes(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> LossBytes:
    """Bytes of logits and loss, computed at once or in chunks of tokens."""
    return _chunked(config, shape, batch, sizes) or LossBytes(*_logits(config, shape, batch, sizes))


def _chunked(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> LossBytes | None:
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


def _logits(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> tuple[float, float]:
    """Bytes of logits and loss at the end of the forward pass and at the beginning of the backward pass."""
    if not config.task.generates:
        return 0.0, 0.0
    if config.task in (Task.DPO, Task.KTO):
        return _fused_head(config, shape, batch, sizes)
    elements = batch.loss_tokens * shape.vocab / config.sequence_parallel_size
    if config.task is Task.ORPO:
        # All logits, and a contiguous copy and the log-probabilities of the chosen answers, which are half of the rows. Backward:
        # the gradients of both parts of the loss and their sum. Without autocast they stay in 16 bits.
        if sizes.compute == 2 and not sizes.casts:
            return elements * 4, elements * 6
        return elements * 8, elements * 16
    if shape.encoder is not None and sizes.compute == 2 and not sizes.casts:
        return elements * 4, elements * 6  # encoder-decoders compute their loss in the format of the logits
    # Forward: logits, an fp32 copy of 16-bit logits, and log-probabilities. Backward: log-probabilities and the gradients of loss
    # and logits, all in fp32.
    capped = sizes.compute * elements if shape.model_type in SOFTCAPS else 0.0
    return elements * (8 if sizes.compute == 4 else 4 + 4 + sizes.compute) + capped, elements * 12 + capped


def _fused_head(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> tuple[float, float]:
    """trl's fused head computes log-probabilities by tiles; its buffer is as wide as a tile, also for a smaller vocabulary."""
    tokens = min(batch.loss_tokens, _TOKEN_CHUNK)
    buffer = tokens * _VOCABULARY_CHUNK * sizes.compute
    tiles = _TILES_ON_CPU + (shape.model_type in SOFTCAPS)
    tile = 0 if sizes.on_cuda else 4 * tokens * min(shape.vocab, _VOCABULARY_CHUNK) * tiles
    gradients = 4 * batch.loss_tokens * shape.hidden
    if not config.method.adapts and not config.trainable_layers:
        gradients += 4 * (shape.head or shape.table)
    return buffer + tile / 2, buffer + tile + gradients

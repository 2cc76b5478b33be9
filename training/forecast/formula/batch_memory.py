"""The memory of a run that depends on its batch, by formula. No torch. All numbers are bytes on one rank.

Its activations are those of its layers, as far as checkpointing, frozen layers and offloading leave them; to these come logits and
loss, computed at once or in chunks of tokens.
"""

from dataclasses import dataclass, replace

from training.config.choices import Attention, Checkpointing, Method, Precision, Quantization, Strategy
from training.config.run_config import RunConfig
from training.forecast.formula.activations import (
    Batch,
    Formats,
    attention_gradients,
    layer_bytes,
    position_biases,
    quantized_inputs,
)
from training.forecast.formula.sizes import Sizes
from training.forecast.formula.trainable import adapter_rank, adapts_experts, rotated_block, trains_head
from training.model_info.shape import ModelShape, Stack
from training.rules.memory import chunk_tokens, wants_chunks

_BLOOM = "bloom"
SOFTCAPS = ("gemma2",)
"""Families that cap logits and scores of attention by a tanh, whose result is saved."""
_VOCABULARY_CHUNK = 32_768
"""Vocabulary entries and tokens of a tile of trl's fused head (trl/trainer/utils.py, trl/kernels/chunked_logprob.py)."""
_TOKEN_CHUNK = 4096
_TILES_ON_CPU = 7.25
"""fp32 copies of a tile that its backward pass has at its peak without Triton; a mask of bytes is a quarter of one."""

_PART_TOKENS, _PART_TENSORS = 256, 4
"""Tokens whose logits are compared with a teacher's at once, and fp32 tensors of this size (training/trainer/jensen_shannon.py);
twice as many with a mixture of both."""


def task_shape(config: RunConfig, shape: ModelShape) -> ModelShape:
    """The shape of the model that the task trains: a scoring model has no language model head."""
    if config.task.traits.is_preference:
        shape = replace(shape, dropout=0.0)
    return shape if config.task.traits.generates else replace(shape, head=0)


def formats_of(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Formats:
    capped = shape.model_type in SOFTCAPS
    # PEFT's layers over quantized ones leave casting to CUDA's autocast, which copies no 16-bit input (peft/tuners/lora/bnb.py).
    shares_inputs = config.method.is_lora and config.quantized is not Quantization.NONE and sizes.on_cuda
    casts = sizes.casts and not (shares_inputs and sizes.stream == sizes.compute)
    return Formats(
        stream=sizes.stream, compute=sizes.compute, casts=casts, autocast=sizes.casts, trains=not config.method.adapts,
        adapts=sizes.adapts, rank=adapter_rank(config),
        adapter_dropout=config.lora_dropout > 0 and config.method.is_lora and not config.task.traits.is_preference,
        on_cuda=sizes.on_cuda, flash=sizes.flash,
        # The families that cap scores have no other kernel without flash attention (transformers/models/gemma2), BLOOM none at all.
        eager=config.attention is Attention.EAGER or (capped and not config.attention.flash) or shape.model_type == _BLOOM,
        softcaps=capped,
        # bitsandbytes/autograd/_functions.py: MatMul8bitFp
        keeps_inputs=config.quantized is Quantization.INT8 and not sizes.on_cuda,
        scales_outputs=config.method.is_lora and config.use_dora, only_scales=config.method is Method.VERA,
        whole_products=config.method is Method.LOHA,
        rotates=rotated_block(config, shape.hidden) if config.method is Method.OFT else 0,
        adapts_experts=adapts_experts(config, shape), upcasts=upcasts(config, sizes),
        copies_weights=config.method.is_lora and config.use_dora and config.lora_dropout > 0
        and (sizes.casts or config.quantized is not Quantization.NONE),
    )  # fmt: skip


def upcasts(config: RunConfig, sizes: Sizes) -> bool:
    """True if an adapter computes in fp32 between 16-bit weights: without autocast, and without ZeRO and FSDP that convert it."""
    fp32 = config.precision is Precision.FP32 or (config.precision is Precision.AUTO and not sizes.on_cuda)
    return config.method.adapts and config.strategy.zero_stage is None and sizes.compute == 2 and fp32


def run_activations(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> tuple[float, float, float]:
    """Activations at the end of the forward pass, what a layer takes besides during the backward pass of the last ones, and what
    the largest layer takes in that of the first ones, which are always recomputed if any are."""
    formats = formats_of(config, shape, sizes)
    share = config.sequence_parallel_size
    whole = [(stack, layer_bytes(shape, stack, batch, formats) / share) for stack in shape.stacks]
    layers, spared = trained_layers(config, shape), _spared_layers(config, shape)
    kept = sum(layers[stack] * amount for stack, amount in whole)
    trained = [amount for stack, amount in whole if layers[stack]]
    widest_layer = largest = recomputed = max(trained)  # the layer that is recomputed
    inputs = sum((layers[one] - spared[one]) * batch.of(shape, one)[0] for one in shape.stacks) * shape.hidden
    inputs_bytes = inputs * sizes.stream / share
    if config.gradient_checkpointing is Checkpointing.SELECTIVE:
        kept = sum(spared[stack] * amount for stack, amount in whole)
        if shape.layers % 2 == 0:  # the last layer, which is not recomputed, is done before the first one that is
            recomputed = 0.0
    elif config.recomputes:
        kept = 0.0
    else:
        inputs_bytes = recomputed = largest = 0.0
    if formats.keeps_inputs and config.recomputes:
        again = sum((layers[one] - spared[one]) * quantized_inputs(shape, one, batch, formats) for one in shape.stacks)
        kept += again / share
    if config.gradient_checkpointing is Checkpointing.OFFLOADED and sizes.on_cuda:
        inputs_bytes = 0.0  # on CPU they stay in the same memory
    if config.offload_activations:
        kept, inputs_bytes, recomputed = 0.0, 0.0, widest_layer  # a layer's activations come back for its backward pass
    outside = batch.tokens * shape.hidden * (sizes.stream + 4)  # embeddings, and the input of the last norm
    outside += position_biases(shape, batch, formats)
    widest = max(stack.intermediate * max(stack.routed, 1) for stack in shape.stacks)
    # Gradients of the MLP; the derivative of BLOOM's activation also makes tensors of its width.
    wide = 4 if shape.model_type == _BLOOM else 1 if formats.keeps_inputs and config.recomputes else 2
    gradients = _of_products(shape, formats)
    moving = gradients + batch.tokens * (wide * widest + shape.hidden) * sizes.compute / share
    moving = max(moving, *(attention_gradients(shape, stack, batch, formats) / share for stack in shape.stacks))
    return kept + inputs_bytes + outside, recomputed + moving, max(largest, recomputed) + moving


def _of_products(shape: ModelShape, formats: Formats) -> float:
    """Temporary tensors of the size of the largest adapted weight in LoHa's backward pass, two factors and three gradients
    (peft/tuners/loha/layer.py: HadaWeight)."""
    if not formats.whole_products:
        return 0.0
    adapted = [one for stack in shape.stacks for one in stack.linears if one.name in formats.adapts]
    return 5.0 * formats.adapter * max((one.inputs * one.outputs for one in adapted), default=0)


def trained_layers(config: RunConfig, shape: ModelShape) -> dict[Stack, int]:
    """The layers of each stack through which gradients flow: with `trainable_layers` only the last ones."""
    layers = {stack: stack.layers for stack in shape.stacks}
    if config.trainable_layers and not config.method.adapts:
        layers = dict.fromkeys(layers, 0) | {shape.stacks[-1]: min(config.trainable_layers, shape.stacks[-1].layers)}
    return layers


def _spared_layers(config: RunConfig, shape: ModelShape) -> dict[Stack, int]:
    """The layers of each stack that selective checkpointing does not recompute: every second one, through all stacks
    (training/models/activation_checkpointing.py)."""
    if config.gradient_checkpointing is not Checkpointing.SELECTIVE:
        return dict.fromkeys(shape.stacks, 0)
    spared, end = {}, 0
    for stack, count in trained_layers(config, shape).items():
        end += stack.layers
        spared[stack] = end // 2 - (end - count) // 2
    return spared


def first_layer(shape: ModelShape, batch: Batch, sizes: Sizes) -> float:
    """Activations of the first layer while it runs forward: its input and output, and four of the width of its MLP, or two of one
    without a gate."""
    stack = shape.stacks[0]
    wide = (4 if stack.gated else 2) * stack.intermediate * max(stack.routed, 1)
    return float(batch.tokens * (wide + 2 * shape.hidden) * sizes.compute)


@dataclass(frozen=True)
class LossBytes:
    """Bytes of the loss: at the end of the forward pass, and at the beginning of the backward pass. `head` is the gradient of the
    head's weight, which a chunked loss computes in the forward pass."""

    forward: float
    backward: float
    head: float = 0.0


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
    if not config.task.traits.generates:
        return 0.0, 0.0
    if config.task.traits.has_reference or config.task.traits.samples:
        distills = config.task.traits.has_teacher
        return _compared(config, shape, batch, sizes) if distills else _fused_head(config, shape, batch, sizes)
    elements = batch.loss_tokens * shape.vocab / config.sequence_parallel_size
    if config.task.traits.odds_ratio:
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


def _compared(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> tuple[float, float]:
    """The logits of student and teacher, each with the one after the last token, and fp32 tensors of a part of the tokens
    (training/trainer/jensen_shannon.py). Backward: also the gradient in parts, and then joined."""
    tokens, vocab = (batch.labeled or batch.loss_tokens) + batch.rows, (shape.teacher or shape).vocab
    own = 4 if sizes.casts else sizes.compute  # accelerate converts the outputs of autocast to fp32
    logits = tokens * (own * shape.vocab + sizes.compute * vocab)
    part = _PART_TENSORS * 4 * min(tokens, _PART_TOKENS) * min(shape.vocab, vocab)
    part *= 2 if 0 < config.jsd_coefficient < 1 else 1
    gradient = own * tokens * shape.vocab
    return logits + part, logits + gradient + max(gradient, part)


def _fused_head(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> tuple[float, float]:
    """trl's fused head computes log-probabilities by tiles; its buffer is as wide as a tile, also for a smaller vocabulary. With
    Triton's kernels it leaves out tokens without loss."""
    scored = (batch.labeled if sizes.on_cuda else 0) or batch.loss_tokens
    tokens = min(scored, _TOKEN_CHUNK)
    buffer = tokens * _VOCABULARY_CHUNK * sizes.compute
    tiles = _TILES_ON_CPU + (shape.model_type in SOFTCAPS)
    tile = 0 if sizes.on_cuda else 4 * tokens * min(shape.vocab, _VOCABULARY_CHUNK) * tiles
    gradients = 4 * scored * shape.hidden
    if not config.method.adapts and not config.trainable_layers:
        gradients += 4 * (shape.head or shape.table)
    return buffer + tile / 2, buffer + tile + gradients

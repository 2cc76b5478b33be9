"""The memory of a run at each moment of its steps, by kind. No torch. All numbers are bytes on one rank."""

from dataclasses import replace

from training.config.choices import Checkpointing, Quantization, Strategy
from training.config.run_config import RunConfig
from training.forecast.formula.activations import Batch, layer_bytes
from training.forecast.formula.batch_memory import (
    LossBytes,
    first_layer,
    formats_of,
    loss_bytes,
    run_activations,
    trained_layers,
    upcasts,
)
from training.forecast.formula.sharded import is_sharded, optimizer_bytes, pass_bytes, saving_bytes, start_bytes
from training.forecast.formula.sizes import Sizes
from training.forecast.formula.trainable import norm_bytes, split_experts, ties_head, trains_tables
from training.model_info.shape import ModelShape
from training.rules.memory import wants_chunks

Parts = dict[str, float]
_FP32 = 4
_PROBE_TOKENS = 12
"""Tokens of each row of the check before the first step (training/batches/layout.py)."""
MOMENTS = {
    "loading": "the loading of the weights",
    "start": "the start, when rank 0 broadcasts the weights",
    "check": "the check that concatenated rows do not mix",
    "forward": "the end of the forward pass",
    "backward": "the beginning of the backward pass",
    "layer": "the backward pass of the last layer",
    "encoder": "the beginning of the encoder's backward pass",
    "gradients": "the end of the backward pass",
    "optimizer": "the optimizer step",
    "evaluating": "the evaluation of held-out rows",
    "sampling": "the drawing of samples",
    "saving": "saving",
}
NOT_IN_STEPS = ("loading", "check", "evaluating", "sampling", "saving")
"""Moments that a simulated step does not have."""

_AFTER_PASSES = ("optimizer", "evaluating", "sampling", "saving")
_SUMS_BYTES = 24
"""Bytes for each entry of the vocabulary of a row whose next token is drawn: probabilities and their sums in fp64
(training/trainer/generation.py)."""


def moments(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> dict[str, Parts]:
    """The parts of the memory at each moment."""
    accumulates = config.gradient_accumulation_steps > 1
    if batch.first_micro:
        config = config.model_copy(update={"gradient_accumulation_steps": 1})
    kept, layer, first = run_activations(config, shape, batch, sizes)
    loss = loss_bytes(config, shape, batch, sizes)
    before = sizes.gradients if config.gradient_accumulation_steps > 1 else 0.0
    casts, casts_left, head_cast = _casts(config, shape, sizes)
    head = _head_gradient(config, shape, sizes)
    # The gradient of a tied embedding is a third tensor, the sum of those of embedding and head.
    table = head if ties_head(config, shape) else 0.0
    # With accumulation they are added to those of earlier micro steps, whatever the rows.
    tables = (3 if accumulates and not config.steps_in_backward else 2) * table
    if accumulates and not table and trains_tables(config) and not config.steps_in_backward:
        tables = float(shape.table * sizes.gradient_format)  # before it is added
    passes = float(sizes.buffers + sizes.gathered.in_layers)
    live: dict[str, Parts] = {
        "loading": {"optimizer": 0.0, "buffers": max(sizes.loading - sizes.weights, 0.0)},
        "start": {"optimizer": 0.0, "buffers": sizes.start},
        "check": _check(shape, batch, sizes),
        "forward": {
            "activations": kept,
            "logits": loss.forward,
            "gradients": before + loss.head,
            "buffers": passes + casts + head_cast,
        },
        "backward": {
            "activations": kept,
            "logits": loss.backward,
            "gradients": before + loss.head,
            "buffers": passes + casts_left + head_cast,
        },
        "layer": {
            "activations": kept + layer,
            "gradients": max(before, head) + (table if before else 0),
            "buffers": passes + casts_left + (0.0 if shape.head else head_cast) + _weight_copies(config, shape, sizes),
        },
        "encoder": _encoder(config, shape, batch, sizes)
        | {"buffers": passes + (casts_left + head_cast) * _encoder_share(shape)},
        # Measured: a decoder's copies are gone by then, those of an encoder-decoder are not.
        "gradients": _ending(config, shape, sizes, first, tables)
        | {"buffers": passes + (casts_left + head_cast if shape.encoder else 0.0)},
        "optimizer": {"gradients": sizes.gradients + sizes.step, "buffers": float(sizes.buffers)},
        "evaluating": _evaluating(config, shape, batch, sizes),
        "sampling": _sampling(config, shape, batch, sizes),
        # transformers splits gate and up of fused experts where they are, and all parts live until the file is written
        # (transformers/core_model_loading.py). Other tensors are saved as they are.
        "saving": {"buffers": 0.0 if config.method.adapts else float(split_experts(shape) * sizes.gradient_format)},
    }
    if is_sharded(config):
        live |= _sharded(config, shape, sizes, (kept, layer, first, first_layer(shape, batch, sizes)), loss)
    norms = norm_bytes(config, shape, sizes.compute, casts=sizes.casts, upcasts=upcasts(config, sizes))
    _with_norms(live, config, norms)
    base: Parts = {"weights": sizes.weights, "optimizer": sizes.optimizer}
    early: Parts = {"optimizer": sizes.master} if batch.first_step else {}
    return {name: base | ({} if name in _AFTER_PASSES else early) | parts for name, parts in live.items()}


def _ending(config: RunConfig, shape: ModelShape, sizes: Sizes, first: float, tables: float) -> Parts:
    """Gradients and activations when the backward pass ends: the first layer's gradients replace its activations (`first`), and
    `tables` is what the gradient of the embeddings takes besides, which comes last."""
    keeps = not config.method.adapts and not config.steps_in_backward
    replaced = sizes.gradients * shape.largest_layer / max(shape.parameters, 1) if keeps else 0.0
    if first > replaced + tables:
        return {"activations": first, "gradients": sizes.gradients - replaced}
    return {"gradients": sizes.gradients + tables}


def _check(shape: ModelShape, batch: Batch, sizes: Sizes) -> Parts:
    """The logits of the check that a flat batch does not mix its rows: of both rows, of one, their difference and its absolute
    value (training/batches/layout.py)."""
    tokens = 5 * _PROBE_TOKENS if batch.flat else 0
    return {"optimizer": 0.0, "logits": 4.0 * tokens * shape.vocab, "buffers": sizes.buffers}


def _evaluating(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> Parts:
    """The logits and losses of held-out rows; their activations are freed layer by layer."""
    tokens = batch.held_out_tokens
    rows = replace(batch, tokens=tokens, loss_tokens=tokens, labeled=tokens)
    gradients = sizes.gradients if config.strategy.zero_stage == 3 else 0.0  # in a buffer that always lives
    logits = loss_bytes(config, shape, rows, sizes).forward if tokens else 0.0
    if shape.encoder is None and not batch.flat and sizes.compute == _FP32 and not wants_chunks(config, shape.vocab):
        logits += _FP32 * tokens * shape.vocab  # a copy without the last tokens (training/trainer/evaluation.py)
    return {"logits": logits, "gradients": gradients, "buffers": sizes.buffers + sizes.gathered.with_logits}


def _sampling(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> Parts:
    """Keys and values of the samples of a micro batch at full length, and a second copy of one layer's, to which a token is added;
    the logits of their next tokens."""
    if not config.task.traits.samples or config.draws_with_vllm:
        return {}
    stacks = (shape.decoder, *shape.more)
    widest = max(stack.kv_heads * stack.head_dim for stack in stacks)
    layers = sum(stack.layers * stack.kv_heads * stack.head_dim for stack in stacks) + widest
    logits = batch.rows * shape.vocab * float(sizes.compute + _FP32 + _SUMS_BYTES)
    buffers = sizes.buffers + sizes.gathered.with_logits
    return {
        "activations": 2.0 * layers * sizes.compute * batch.rows * batch.length,
        "logits": logits,
        "buffers": buffers,
    }


def _sharded(
    config: RunConfig, shape: ModelShape, sizes: Sizes, activations: tuple[float, float, float, float], loss: LossBytes
) -> dict[str, Parts]:
    """The parts that differ with ZeRO and FSDP; they do not use autocast."""
    kept, layer, ends, first = activations
    live, gathered, buffers = pass_bytes(config, shape, sizes), sizes.gathered, float(sizes.buffers)
    layers = buffers + gathered.in_layers
    logits: Parts = {"activations": kept, "gradients": live.before + loss.head}
    # The last gathering of the forward pass comes before that layer stores anything.
    without_last, at_layer = kept * (1 - 1 / shape.layers), max(live.last_layer, live.before + loss.head)
    last: Parts = {"activations": without_last, "gradients": live.before}
    held = live.before if config.strategy.zero_stage == 3 else 0.0
    return {
        "start": _larger(
            {"optimizer": 0.0, "buffers": start_bytes(config, shape, sizes)},
            {"optimizer": sizes.optimizer, "activations": first, "gradients": live.before, "buffers": buffers + gathered.at_once},
        ),
        "forward": _larger(
            logits | {"logits": loss.forward, "buffers": buffers + gathered.with_logits},
            last | {"buffers": buffers + gathered.in_forward},
        ),
        "backward": logits | {"logits": loss.backward, "buffers": buffers + gathered.with_gradients},
        "layer": _larger(
            {"activations": kept + layer, "gradients": at_layer, "buffers": layers},
            {"activations": without_last + layer, "gradients": live.next_layer, "buffers": layers},
        ),
        "gradients": _larger(
            {"activations": ends, "gradients": live.first_layer, "buffers": buffers + gathered.in_first},
            {"gradients": live.end, "buffers": buffers + live.gathered},
        ),
        "optimizer": {"gradients": optimizer_bytes(config, shape, sizes), "buffers": buffers},
        "saving": {"gradients": held, "buffers": buffers + saving_bytes(config, shape, sizes)},
    }  # fmt: skip


def _with_norms(live: dict[str, Parts], config: RunConfig, norms: float) -> None:
    """Adds what DoRA computes in the pass of each adapted module: before the logits, and again in layers that are recomputed."""
    if norms:
        forward = live["forward"]
        live["forward"] = _larger(forward, forward | {"logits": 0.0, "buffers": forward["buffers"] + norms})
    if norms and config.recomputes:
        live["layer"] = live["layer"] | {"buffers": live["layer"]["buffers"] + norms}


def _larger(one: Parts, other: Parts) -> Parts:
    return max(one, other, key=lambda parts: sum(parts.values()))


def _encoder_share(shape: ModelShape) -> float:
    """The encoder's share of the weights in layers; 0 without an encoder."""
    encoder = shape.encoder
    return encoder.layers * encoder.layer_parameters / shape.in_layers if encoder else 0.0


def _encoder(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> Parts:
    """When the decoder's gradients are complete, and the encoder's activations still stored."""
    if shape.encoder is None or config.method.adapts or config.trainable_layers or config.recomputes:
        return {}
    if config.offload_activations:
        return {}
    kept = shape.encoder.layers * layer_bytes(shape, shape.encoder, batch, formats_of(config, shape, sizes))
    complete = 1 - _encoder_share(shape) * shape.in_layers / shape.parameters
    return {"activations": kept / config.sequence_parallel_size, "gradients": sizes.gradients * complete}


def _casts(config: RunConfig, shape: ModelShape, sizes: Sizes) -> tuple[float, float, float]:
    """Autocast's 16-bit copies of layers' fp32 weights at the end of the forward pass and at the beginning of the backward pass,
    and of the head's at both; a chunked loss counts its own.

    In the forward pass its cache holds those of all trained weights. Afterwards the graph holds those of layers that are not
    recomputed, and of the head.
    """
    if not sizes.casts or sizes.stream != 4:
        return 0.0, 0.0, 0.0
    at_once = config.task.traits.generates and not wants_chunks(config, shape.vocab)
    head = 2.0 * (shape.head or shape.table) if at_once else 0.0
    layers = 2 * sum(
        count * linear.inputs * linear.outputs
        for stack, count in trained_layers(config, shape).items()
        for linear in stack.linears
    )
    if config.method.adapts:  # frozen weights are not cached
        layers = layers if not config.recomputes else 0
    left = (
        layers / 2 if config.gradient_checkpointing is Checkpointing.SELECTIVE else 0 if config.recomputes else layers
    )
    return float(layers), float(left), head


def _weight_copies(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """Autocast's copies of the weights of a layer that is recomputed, or the largest quantized weight, which its backward pass
    unpacks whole."""
    casts = sizes.casts and sizes.stream == 4 and config.recomputes
    largest = max(one.inputs * one.outputs for stack in shape.stacks for one in stack.linears)
    unpacked = sizes.compute * largest if config.quantized is not Quantization.NONE else 0
    return float(max(2 * shape.largest_layer if casts else 0, unpacked))


def _head_gradient(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """The gradients that exist when the backward pass reaches the last layer: those of the head, or a whole buffer of ZeRO."""
    if config.strategy.zero_stage in (1, 2):
        return sizes.gradients / (config.num_processes if config.strategy.zero_stage == 1 else 1)
    if config.strategy.zero_stage == 3:
        return sizes.gradients
    frozen = config.method.adapts or config.trainable_layers or not config.task.traits.generates
    return (
        0.0
        if frozen or config.strategy is Strategy.FSDP
        else float((shape.head or shape.table) * sizes.gradient_format)
    )

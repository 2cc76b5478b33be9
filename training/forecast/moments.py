"""The memory of a run at each moment of its steps, by kind. No torch. All numbers are bytes on one rank."""

from training.config.choices import Attention, Checkpointing, Strategy
from training.config.chunked_loss import wants_chunks
from training.config.run_config import RunConfig
from training.forecast.activations import Batch, Formats
from training.forecast.layers import layer_bytes
from training.forecast.sizes import Sizes
from training.forecast.task_memory import loss_bytes, ties_head
from training.model_info.shape import ModelShape, Stack

Parts = dict[str, float]
MOMENTS = {
    "start": "the start, when rank 0 broadcasts the weights",
    "forward": "the end of the forward pass",
    "backward": "the beginning of the backward pass",
    "layer": "the backward pass of the last layer",
    "encoder": "the beginning of the encoder's backward pass",
    "gradients": "the end of the backward pass",
    "optimizer": "the optimizer step",
    "saving": "saving",
}


def moments(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> dict[str, Parts]:
    """The parts of the memory at each moment."""
    kept, layer = _activations(config, shape, batch, sizes)
    loss = loss_bytes(config, shape, batch, sizes)
    before = sizes.gradients if config.gradient_accumulation_steps > 1 else 0.0
    casts, casts_left, head_cast = _casts(config, shape, sizes)
    head = _head_gradient(config, shape, sizes)
    # The gradient of a tied embedding is a third tensor, the sum of those of embedding and head.
    table = head if ties_head(config, shape) else 0.0
    # The first layer's gradients replace its activations; those of the embeddings come last.
    accumulates = not config.method.adapts and not config.steps_in_backward
    share = shape.largest_layer / max(shape.parameters, 1) if accumulates else 0.0
    replaced = sizes.gradients * share
    ending: Parts = (
        {"activations": layer, "gradients": sizes.gradients - replaced}
        if layer > replaced + 2 * table
        else {"gradients": sizes.gradients + 2 * table}
    )
    passes = float(sizes.buffers + sizes.gathered)
    live: dict[str, Parts] = {
        "start": {"buffers": sizes.buffers + sizes.gathered + sizes.start},
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
            "buffers": passes + casts_left + (0.0 if shape.head else head_cast) + _recast(config, shape, sizes),
        },
        "encoder": _encoder(config, shape, batch, sizes)
        | {"buffers": passes + (casts_left + head_cast) * _encoder_share(shape)},
        # Measured: a decoder's copies are gone by then, those of an encoder-decoder are not.
        "gradients": ending | {"buffers": passes + (casts_left + head_cast if shape.encoder else 0.0)},
        "optimizer": {"gradients": sizes.gradients + sizes.step, "buffers": float(sizes.buffers)},
        "saving": {"buffers": _saving(config, shape, sizes)},
    }
    base: Parts = {"weights": sizes.weights, "optimizer": sizes.optimizer}
    return {name: base | parts for name, parts in live.items()}


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
    kept = shape.encoder.layers * layer_bytes(shape, shape.encoder, batch, _formats(config, sizes))
    complete = 1 - _encoder_share(shape) * shape.in_layers / shape.parameters
    return {"activations": kept / config.sequence_parallel_size, "gradients": sizes.gradients * complete}


def _formats(config: RunConfig, sizes: Sizes) -> Formats:
    return Formats(
        stream=sizes.stream, compute=sizes.compute, casts=sizes.casts, trains=not config.method.adapts,
        adapts=sizes.adapts, rank=config.lora_r if config.method.is_lora else 8,
        adapter_dropout=config.lora_dropout > 0 and config.method.is_lora, on_cuda=sizes.on_cuda,
        eager=config.attention is Attention.EAGER,
    )  # fmt: skip


def _activations(config: RunConfig, shape: ModelShape, batch: Batch, sizes: Sizes) -> tuple[float, float]:
    """Activations at the end of the forward pass, and what the largest layer takes besides during its backward pass."""
    formats = _formats(config, sizes)
    share = config.sequence_parallel_size
    whole = [(stack, layer_bytes(shape, stack, batch, formats) / share) for stack in shape.stacks]
    layers = trained_layers(config, shape)
    kept = sum(layers[stack] * amount for stack, amount in whole)
    largest = recomputed = max(amount for _, amount in whole)  # the layer that is recomputed
    inputs = sum(layers[stack] * _tokens(shape, stack, batch) for stack in shape.stacks) * shape.hidden
    inputs_bytes = inputs * sizes.stream / share
    if config.gradient_checkpointing is Checkpointing.SELECTIVE:
        kept, inputs_bytes = kept / 2, inputs_bytes / 2
    elif config.recomputes:
        kept = 0.0
    else:
        inputs_bytes = recomputed = 0.0
    if config.gradient_checkpointing is Checkpointing.OFFLOADED and sizes.on_cuda:
        inputs_bytes = 0.0  # on CPU they stay in the same memory
    if config.offload_activations:
        kept, inputs_bytes, recomputed = 0.0, 0.0, largest  # a layer's activations come back for its backward pass
    outside = batch.tokens * shape.hidden * (sizes.stream + 4)  # embeddings, and the input of the last norm
    widest = max(stack.intermediate * max(stack.routed, 1) for stack in shape.stacks)
    moving = batch.tokens * (2 * widest + shape.hidden) * sizes.compute / share
    return kept + inputs_bytes + outside, recomputed + moving


def trained_layers(config: RunConfig, shape: ModelShape) -> dict[Stack, int]:
    """The layers of each stack through which gradients flow: with `trainable_layers` only the last ones."""
    layers = {stack: stack.layers for stack in shape.stacks}
    if config.trainable_layers and not config.method.adapts:
        layers = dict.fromkeys(layers, 0) | {shape.stacks[-1]: min(config.trainable_layers, shape.stacks[-1].layers)}
    return layers


def _tokens(shape: ModelShape, stack: Stack, batch: Batch) -> int:
    return batch.target_tokens if shape.encoder and stack.cross else batch.tokens


def _casts(config: RunConfig, shape: ModelShape, sizes: Sizes) -> tuple[float, float, float]:
    """Autocast's 16-bit copies of layers' fp32 weights at the end of the forward pass and at the beginning of the backward pass,
    and of the head's at both; a chunked loss counts its own.

    In the forward pass its cache holds those of all trained weights. Afterwards the graph holds those of layers that are not
    recomputed, and of the head.
    """
    if not sizes.casts or sizes.stream != 4:
        return 0.0, 0.0, 0.0
    at_once = config.task.generates and not wants_chunks(config, shape.vocab)
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


def _recast(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """Autocast's copies of the weights of a layer that is recomputed."""
    casts = sizes.casts and sizes.stream == 4 and config.recomputes
    return 2.0 * shape.largest_layer if casts else 0.0


def _head_gradient(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """The gradients that exist when the backward pass reaches the last layer: those of the head, or a whole buffer of ZeRO."""
    if config.strategy.zero_stage in (1, 2):
        return sizes.gradients / (config.num_processes if config.strategy.zero_stage == 1 else 1)
    if config.strategy.zero_stage == 3:
        return sizes.gradients
    frozen = config.method.adapts or config.trainable_layers or not config.task.generates
    return (
        0.0
        if frozen or config.strategy is Strategy.FSDP
        else float((shape.head or shape.table) * sizes.gradient_format)
    )


def _saving(config: RunConfig, shape: ModelShape, sizes: Sizes) -> float:
    """What rank 0 takes to save a trained model: transformers splits experts that are fused in memory, tensor by tensor, and
    FSDP gathers all weights (on a GPU they go to the host one after another)."""
    if config.method.adapts:
        return 0.0
    experts = sum(stack.layers * stack.others for stack in shape.stacks if stack.experts)
    whole = shape.parameters * sizes.gradient_format
    if config.strategy is Strategy.FSDP:
        return 0.0 if sizes.on_cuda else float(whole)
    if not experts:
        return 0.0
    return (
        whole + 2 / 3 * experts * sizes.gradient_format
    )  # a copy, and of gate and up before they are split also a joined one

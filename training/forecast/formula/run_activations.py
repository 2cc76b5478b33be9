"""The activations of a run, from those of its layers: what checkpointing, frozen layers and offloading leave of them. No torch."""

from training.config.choices import Attention, Checkpointing, Method, Precision, Quantization
from training.config.run_config import RunConfig
from training.forecast.formula.activations import (
    Batch,
    Formats,
    attention_gradients,
    layer_bytes,
    position_biases,
    quantized_inputs,
)
from training.forecast.formula.loss import SOFTCAPS, compares_answers
from training.forecast.formula.sizes import Sizes
from training.forecast.formula.trainable import adapter_rank, adapts_experts, rotated_block
from training.model_info.shape import ModelShape, Stack

_BLOOM = "bloom"


def formats_of(config: RunConfig, shape: ModelShape, sizes: Sizes) -> Formats:
    capped = shape.model_type in SOFTCAPS
    # PEFT's layers over quantized ones leave casting to CUDA's autocast, which copies no 16-bit input (peft/tuners/lora/bnb.py).
    shares_inputs = config.method.is_lora and config.quantized is not Quantization.NONE and sizes.on_cuda
    casts = sizes.casts and not (shares_inputs and sizes.stream == sizes.compute)
    return Formats(
        stream=sizes.stream, compute=sizes.compute, casts=casts, autocast=sizes.casts, trains=not config.method.adapts,
        adapts=sizes.adapts, rank=adapter_rank(config),
        adapter_dropout=config.lora_dropout > 0 and config.method.is_lora and not compares_answers(config),
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

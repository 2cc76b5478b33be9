"""Bytes that a layer of any kind saves for the backward pass. No torch.

A layer with attention has the formula of activations.py. Added here is what other kinds save besides: latent attention (DeepSeek-AI
2024, "DeepSeek-V2", section 2.1), experts that every token goes through, and gated short convolutions. What state-space layers and
linear attention save depends on the kernels that are installed; such models are simulated.
"""

from dataclasses import replace

from training.forecast.formula import activations
from training.forecast.formula.activations import Batch, Formats
from training.model_info.shape import Mixer, ModelShape, Stack

_CONVOLUTION_WIDTHS = 7
"""Widths of the hidden size that a gated convolution saves: its three projections, their two products, its input and output."""


def layer_bytes(shape: ModelShape, stack: Stack, batch: Batch, formats: Formats) -> int:
    """Bytes saved for the backward pass of one layer of a stack."""
    if not stack.layers or not stack.linears:
        return 0
    tokens = batch.target_tokens if shape.encoder is not None and stack.cross else batch.tokens
    total = activations.layer_bytes(
        shape, stack if stack.attends else replace(stack, heads=0, kv_heads=0), batch, formats
    )
    total += tokens * (_shared(stack, formats) + _latent(stack, formats))
    if stack.experts and formats.adapts_experts:
        total += formats.compute * stack.others  # PEFT adds the adapter to the weights, and their product saves the sum
    if Mixer.CONVOLUTION in stack.mixers:
        total += tokens * _CONVOLUTION_WIDTHS * formats.compute * shape.hidden
    return max(int(total), 0)


def _shared(stack: Stack, formats: Formats) -> int:
    """Bytes per token of the experts that every token goes through, a gated MLP like the others."""
    return (4 if formats.trains else 3) * formats.compute * stack.shared


def _latent(stack: Stack, formats: Formats) -> int:
    """Bytes per token that latent attention saves beyond attention with as many channels for values as for keys: the norms of the
    compressed queries and keys, less the narrower values and results."""
    queries, keys, value = stack.latent
    if not value:
        return 0
    norms = sum((4 + (formats.stream if formats.trains else 0) + formats.compute) * rank for rank in (queries, keys))
    return norms - 2 * formats.compute * stack.heads * (stack.head_dim - value)

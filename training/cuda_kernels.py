"""What CUDA's kernels keep for the backward pass, where a CPU's keep something else, for a simulation on fake CPU tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional


@contextmanager
def cuda_kernels() -> Iterator[None]:
    """Within, attention keeps its result and the logarithms of its sums, dropout a mask of bytes; autocast normalises in fp32."""
    normalise, softmax = functional.layer_norm, functional.softmax

    def layer_norm(given: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if torch.is_autocast_enabled("cpu"):
            given = given.float()
            weight, bias = (one if one is None else one.float() for one in (weight, bias))
        return normalise(given, shape, weight, bias, eps)

    def softmax_(given: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        return softmax(given.float() if torch.is_autocast_enabled("cpu") else given, *arguments, **named)

    with (
        patch.object(functional, "scaled_dot_product_attention", fused_attention),
        patch.object(functional, "dropout", dropout),
        patch.object(functional, "layer_norm", layer_norm),
        patch.object(functional, "softmax", softmax_),
    ):
        yield


def kept_on_host() -> torch.autograd.graph.saved_tensors_hooks:
    """What a forward pass keeps for the backward pass leaves the device, as with `save_on_cpu`: on meta it counts nothing."""
    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: torch.empty_like(tensor, device="meta") if tensor.is_floating_point() else tensor,
        lambda kept: torch.empty_like(kept, device="cpu") if kept.is_meta else kept,
    )


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *_: Any,
    **__: Any,  # which change no size
) -> torch.Tensor:
    """The flash and the memory-efficient kernel: of shape (rows, heads, tokens, size), without the matrix of all pairs."""
    if torch.is_autocast_enabled("cpu"):
        form = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(form), key.to(form), value.to(form)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
    made: torch.Tensor = _Fused.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]
    return made


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> torch.Tensor:
        made = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, made, sums)
        return made

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        query, key, value, mask, _, _ = ctx.saved_tensors
        of_mask = torch.empty_like(mask) if ctx.needs_input_grad[3] else None
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), of_mask


def dropout(given: torch.Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> torch.Tensor:
    """The fused kernel's: it keeps a byte an element."""
    if not training or p == 0:
        return given
    made: torch.Tensor = torch.native_dropout(given, p, training)[0]
    return made

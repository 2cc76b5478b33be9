"""Makes fake CPU operations save for the backward pass what CUDA's kernels save."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from training.models import attention

_IN_FP32 = {
    getattr(owner, name)
    for names, owners in (
        (("pow", "exp", "log", "rsqrt", "reciprocal", "cumsum", "sum", "softmax", "log_softmax"), (torch, torch.Tensor)),
        (("__pow__", "__rpow__", "__rtruediv__"), (torch.Tensor,)),
        (("layer_norm", "softmax", "log_softmax", "softplus", "cross_entropy"), (functional,)),
    )
    for owner in owners
    for name in names
}  # fmt: skip
"""What CUDA's autocast computes in fp32, of what transformers' models call (https://docs.pytorch.org/docs/stable/amp.html); CPU's
computes less in it."""


class _Fp32Functions(TorchFunctionMode):
    """Copies 16-bit arguments to fp32 where CUDA's autocast does."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if function in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            arguments, named = tree_map_only(torch.Tensor, _in_fp32, (arguments, named))
        return function(*arguments, **named)


def _in_fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


@contextmanager
def cuda_kernels(*, flash: bool = True) -> Iterator[None]:
    """Within it, attention saves its output and log-sum-exp, dropout a byte mask; autocast is that of CUDA.

    Without `flash`, as on cards before Ampere, and in fp32, attention is PyTorch's memory-efficient kernel.
    """
    enabled = torch.is_autocast_enabled

    def has_flash(dtype: torch.dtype) -> bool:
        return flash and dtype is not torch.float32

    with (
        patch.object(functional, "scaled_dot_product_attention", fused_attention),
        patch.object(attention, "has_rows_kernel", lambda _, dtype: has_flash(dtype)),
        patch.object(attention, "lacks_flash", lambda query: not has_flash(attention.computing_dtype(query))),
        patch.object(attention, "varlen_attn", fused_rows),
        patch.object(functional, "dropout", dropout),
        patch.object(torch, "is_autocast_enabled", lambda device="cpu": enabled(device)),  # the default is CUDA
        _Fp32Functions(),
    ):
        yield


def saved_on_host(weights: Iterable[torch.Tensor] = ()) -> torch.autograd.graph.saved_tensors_hooks:
    """Moves activations saved for the backward pass to meta, where they do not count, as `save_on_cpu` moves them to the host.

    The `weights` stay where they are, as with trl's hooks.
    """
    kept = {weight.untyped_storage()._cdata for weight in weights}

    def moves(tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() and tensor.untyped_storage()._cdata not in kept

    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: torch.empty_like(tensor, device="meta") if moves(tensor) else tensor,
        lambda saved: torch.empty_like(saved, device="cpu") if saved.is_meta else saved,
    )


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *_: Any,
    **__: Any,  # options that do not change memory
) -> torch.Tensor:
    """A flash or memory-efficient kernel on tensors of shape (rows, heads, tokens, size); it never stores the score matrix."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
    output: torch.Tensor = _Fused.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]
    return output


def fused_rows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """The flash kernel for rows, on tensors of shape (tokens, heads, size)."""
    heads_first = (part.transpose(0, 1)[None] for part in (query, key, value))
    output: torch.Tensor = _Fused.apply(*heads_first, None)  # type: ignore[no-untyped-call]
    return output[0].transpose(0, 1)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> torch.Tensor:
        output = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
        log_sum_exp = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, output, log_sum_exp)
        return output

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        query, key, value, mask, _, _ = ctx.saved_tensors
        mask_gradient = torch.empty_like(mask) if ctx.needs_input_grad[3] else None
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), mask_gradient


def dropout(inputs: torch.Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> torch.Tensor:
    """The fused dropout kernel, which saves one byte per element."""
    if not training or p == 0:
        return inputs
    output: torch.Tensor = torch.native_dropout(inputs, p, training)[0]
    return output

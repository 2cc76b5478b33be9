"""Attention within each row of a flat batch in one call, by torch's FlashAttention kernel (torch.nn.attention.varlen)."""

import inspect
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn

_LARGEST_HEAD = 256  # FlashAttention's limit
_TAKES_GROUPS = (
    "enable_gqa" in inspect.signature(varlen_attn).parameters
)  # before torch 2.13 the kernel does so without asking


@dataclass(frozen=True)
class FlatRows:
    """Passed in place of an attention mask: the row lengths, and a mask for each row that is not simply causal."""

    lengths: list[int]
    masks: list[torch.Tensor | None]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def bounds(self) -> torch.Tensor:
        """Where each row begins, and where the last one ends: shape (rows + 1), int32."""
        ends = torch.tensor([0, *self.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.device, non_blocking=True)

    @property
    def causal(self) -> bool:
        """Whether every row is simply causal."""
        return all(mask is None for mask in self.masks)


def takes(query: torch.Tensor, value: torch.Tensor, rows: FlatRows, options: dict[str, Any]) -> bool:
    """Whether the kernel computes this attention: 16 bits on Ampere or later, no dropout, causal or with a sliding window.

    `query` and `value` have the shape (1, heads, tokens, size).
    """
    fits = value.shape[-1] == query.shape[-1] <= _LARGEST_HEAD and options.get("dropout", 0.0) == 0
    plain = all(options.get(name) is None for name in ("softcap", "position_bias", "s_aux"))
    return (
        (rows.causal or bool(options.get("sliding_window"))) and fits and plain and runs_on(query.device, dtype(query))
    )


def runs_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has the kernel for a dtype."""
    sixteen_bits = dtype in (torch.float16, torch.bfloat16)
    return device.type == "cuda" and sixteen_bits and torch.version.hip is None and _capability(device) >= (8, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def dtype(query: torch.Tensor) -> torch.dtype:
    """What attention computes in: autocast's dtype, if it is on."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: FlatRows, options: dict[str, Any]
) -> torch.Tensor:
    """Attention of shape (1, tokens, heads, size), of queries, keys and values of shape (1, heads, tokens, size)."""
    queries, keys, values = (tensor[0].transpose(0, 1).to(dtype(query)) for tensor in (query, key, value))
    window = (-1, 0) if rows.causal else (options["sliding_window"] - 1, 0)
    grouped: dict[str, Any] = {"enable_gqa": len(query[0]) != len(key[0])} if _TAKES_GROUPS else {}
    longest = max(rows.lengths)
    output: Any = varlen_attn(
        queries,
        keys,
        values,
        cu_seq_q=rows.bounds,
        cu_seq_k=rows.bounds,
        max_q=longest,
        max_k=longest,
        scale=options.get("scaling"),
        window_size=window,
        **grouped,
    )
    attention: torch.Tensor = output[None]
    return attention

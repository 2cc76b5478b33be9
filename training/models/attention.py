"""Attention for flat batches (rows concatenated into one), computed row by row.

For such a batch transformers gives torch's scaled-dot-product attention (SDPA) a mask over all pairs of tokens, and the kernel
also computes the masked pairs. Here torch's FlashAttention kernel for rows is called (torch.nn.attention.varlen), or SDPA once per
row where there is none: the result is the same, rows cannot mix, and the cost grows with the square of each row's length instead of
the batch's.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from training.config.choices import Attention, Precision
from training.config.run_config import RunConfig
from training.errors import UserError
from training.tables import only

ROW_BY_ROW = "sdpa_row_by_row"
_PADDED_AT_MOST = 1.5  # times the tokens; each call has an overhead, and attention is a small part of a step
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


def implementation(config: RunConfig, model: type[PreTrainedModel]) -> str | None:
    """Returns transformers' name of the attention kernel for a model class; None leaves the choice to transformers.

    Raises:
        UserError: the kernel of the configuration is not installed.
    """
    installed = only({Attention.FLASH_3: is_flash_attn_3_available, Attention.FLASH_2: is_flash_attn_2_available})
    if config.attention is Attention.AUTO:
        if config.precision is Precision.FP32 or not model._supports_flash_attn or not torch.cuda.is_available():
            return None
        card = torch.cuda.get_device_capability()
        return next(
            (name.value for name, is_installed in installed.items() if runs_on(name, card) and is_installed()), None
        )
    if config.attention.flash and not installed[config.attention]():
        package = "flash-attn" if config.attention is Attention.FLASH_2 else "flash-attn-3"
        message = f"needs the package {package}, which is not installed."
        raise UserError("attention", config.attention.value, message, f"Install {package}, or set attention to auto.")
    return config.attention.value


def runs_on(kernel: Attention, card: tuple[int, int]) -> bool:
    """Whether a flash kernel runs on a CUDA compute capability: the second from Ampere on, the third on Hopper (their READMEs)."""
    return card[0] == 9 if kernel is Attention.FLASH_3 else card >= (8, 0)


def has_flash_kernels(precision: Precision) -> bool:
    """Whether SDPA has FlashAttention for what this process computes: 16 bits, from Ampere on. On CPU it has its own kernel."""
    return not torch.cuda.is_available() or (
        precision is not Precision.FP32 and torch.cuda.get_device_capability() >= (8, 0)
    )


def attend_without_groups(model: Any, config: RunConfig) -> None:
    """Makes a model that uses SDPA without FlashAttention repeat keys for grouped heads, with padded rows too: torch's other
    kernels compute groups with the matrix of all pairs."""
    if model.config._attn_implementation == "sdpa" and config.sequence_parallel_size == 1:
        attend_row_by_row(model)


def attend_row_by_row(model: PreTrainedModel) -> None:
    """Makes a model that uses SDPA compute attention within each row of a flat batch.

    torch.compile leaves it out: the lengths of rows are numbers, and a graph would be compiled for each set of them.
    """
    AttentionInterface.register(ROW_BY_ROW, torch.compiler.disable(row_by_row))  # type: ignore[no-untyped-call]
    AttentionMaskInterface.register(ROW_BY_ROW, torch.compiler.disable(rows_from_mask))  # type: ignore[no-untyped-call]
    model.set_attn_implementation(ROW_BY_ROW)


def row_by_row(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | FlatRows | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA with transformers' signature, called once per row, or the kernel for rows where it can compute the same.

    `query`, `key` and `value` have the shape (1, heads, tokens, size), the result (1, tokens, heads, size).
    """
    if not isinstance(attention_mask, FlatRows):
        if lacks_flash(query):
            module, key, value = _without_groups(module, query, key, value)
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output
    if takes_rows(query, value, attention_mask, options):
        return attend_rows(query, key, value, attention_mask, options), None
    if lacks_flash(query):
        module, key, value = _without_groups(module, query, key, value)
    if _padding_is_cheaper(attention_mask):
        return attend_padded(module, query, key, value, attention_mask.lengths, **options)
    parts = zip(*(torch.split(tensor, attention_mask.lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs = [
        sdpa_attention_forward(module, *part, mask, **options)[0]
        for part, mask in zip(parts, attention_mask.masks, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def takes_rows(query: torch.Tensor, value: torch.Tensor, rows: FlatRows, options: dict[str, Any]) -> bool:
    """Whether the kernel for rows computes this attention: 16 bits on Ampere or later, no dropout, causal or with a sliding window.

    `query` and `value` have the shape (1, heads, tokens, size).
    """
    fits = value.shape[-1] == query.shape[-1] <= _LARGEST_HEAD and options.get("dropout", 0.0) == 0
    plain = all(options.get(name) is None for name in ("softcap", "position_bias", "s_aux"))
    return (
        (rows.causal or bool(options.get("sliding_window")))
        and fits
        and plain
        and has_rows_kernel(query.device, computing_dtype(query))
    )


def has_rows_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has the kernel for rows, in a dtype."""
    sixteen_bits = dtype in (torch.float16, torch.bfloat16)
    return device.type == "cuda" and sixteen_bits and torch.version.hip is None and _capability(device) >= (8, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def computing_dtype(query: torch.Tensor) -> torch.dtype:
    """What attention computes in: autocast's dtype, if it is on."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


def attend_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: FlatRows, options: dict[str, Any]
) -> torch.Tensor:
    """Attention within rows in one call, of shape (1, tokens, heads, size); the arguments have (1, heads, tokens, size)."""
    queries, keys, values = (tensor[0].transpose(0, 1).to(computing_dtype(query)) for tensor in (query, key, value))
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


def lacks_flash(query: torch.Tensor) -> bool:
    """Whether SDPA on a GPU has no flash kernel for these queries."""
    return query.is_cuda and not has_rows_kernel(query.device, computing_dtype(query))


def _without_groups(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Repeats keys and values for each query head: without flash kernels, SDPA computes grouped heads with the matrix of all pairs.

    The module is one without groups, for `sdpa_attention_forward` (https://github.com/huggingface/transformers/issues/48633).
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    return SimpleNamespace(is_causal=getattr(module, "is_causal", True)), key, value


def attend_padded(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA in one call over rows of similar length, padded at the end; causal attention never reads the padding."""
    padded = [
        pad_sequence([row.transpose(0, 1) for row in torch.split(tensor[0], lengths, dim=1)], batch_first=True)
        for tensor in (query, key, value)
    ]
    output, _ = sdpa_attention_forward(module, *(tensor.transpose(1, 2) for tensor in padded), None, **options)
    return torch.cat([row[:length] for row, length in zip(output, lengths, strict=True)])[None], None


def _padding_is_cheaper(rows: FlatRows) -> bool:
    """True if one call with a little padding costs less than one call per row."""
    return (
        len(rows.lengths) > 1
        and rows.causal
        and len(rows.lengths) * max(rows.lengths) <= _PADDED_AT_MOST * sum(rows.lengths)
    )


def rows_from_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., torch.Tensor],
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> torch.Tensor | FlatRows | None:
    """Returns the rows of a flat batch, read from transformers' mask function; for any other batch the usual mask."""
    # Where positions restart within a row, transformers never lets a kernel assume a causal mask.
    flat = batch_size == 1 and q_length == kv_length and attention_mask is None and not allow_is_causal_skip
    if not flat or use_vmap or q_length < 2:
        sizes = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "mask_function": mask_function}
        options |= {"attention_mask": attention_mask, "local_size": local_size, "use_vmap": use_vmap, "device": device}
        mask: torch.Tensor | None = sdpa_mask(**sizes, allow_is_causal_skip=allow_is_causal_skip, **options)
        return mask
    tokens = torch.arange(q_length, device=device)
    # A row begins at each token that does not attend to the token before it.
    begins = (~mask_function(0, 0, tokens[1:], tokens[:-1])).nonzero().flatten().tolist()
    bounds = [0, *(place + 1 for place in begins), q_length]
    spans = list(pairwise(bounds))
    masks = [
        None if local_size is None or end - start <= local_size else _mask(mask_function, tokens[start:end])
        for start, end in spans
    ]
    return FlatRows([end - start for start, end in spans], masks, tokens.device)


def _mask(mask_function: Callable[..., torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Returns the attention mask of one row, of shape (1, 1, tokens, tokens)."""
    return mask_function(0, 0, tokens[:, None], tokens[None, :])[None, None]

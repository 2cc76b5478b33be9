"""Attention over rows that lie end to end in one flat row, each row for itself.

transformers describes such a batch to torch's scaled-dot-product attention (SDPA) by a mask over all pairs of tokens, and the
kernel then works through pairs that it must not see. Here it is called once for each row: the same numbers, nothing of one row
is in reach of another, and the cost grows with the square of each row's length and not of the batch's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from training.config import Attention, Precision, RunConfig
from training.failure import UserError

ROW_BY_ROW = "sdpa_row_by_row"
_PADDED_AT_MOST = 1.5  # times the tokens: attention is a small part of a step, and each call of it has a price


@dataclass(frozen=True)
class Rows:
    """What stands in the place of a mask: the rows' lengths, and a mask for each that is not simply causal."""

    lengths: list[int]
    masks: list[torch.Tensor | None]


def implementation(config: RunConfig, model: type[PreTrainedModel]) -> str | None:
    """transformers' name of the kernel for models of a class; None leaves the choice to transformers.

    Raises:
        UserError: the kernel asked for is not installed.
    """
    installed = {Attention.FLASH_3: is_flash_attn_3_available, Attention.FLASH_2: is_flash_attn_2_available}
    if config.attention is Attention.AUTO:
        fits = torch.cuda.is_available() and config.precision is not Precision.FP32 and model._supports_flash_attn
        return next((name.value for name, there in installed.items() if fits and there()), None)
    if config.attention.flash and not installed[config.attention]():
        package = "flash-attn" if config.attention is Attention.FLASH_2 else "flash-attn-3"
        message = f"needs the package {package}, which is not installed."
        raise UserError("attention", config.attention.value, message, f"Install {package}, or set attention to auto.")
    return config.attention.value


def go_row_by_row(model: PreTrainedModel) -> None:
    """Sets a model that uses SDPA to attend within each row of a flat batch alone."""
    AttentionInterface.register(ROW_BY_ROW, row_by_row)
    AttentionMaskInterface.register(ROW_BY_ROW, rows_of)
    model.set_attn_implementation(ROW_BY_ROW)


def row_by_row(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | Rows | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA as transformers calls it, once a row; tensors of shape (1, heads, tokens, size), the result (1, tokens, heads, size)."""
    if not isinstance(attention_mask, Rows):
        whole: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return whole
    if _alike(attention_mask):
        return side_by_side(module, query, key, value, attention_mask.lengths, **options)
    parts = zip(*(torch.split(tensor, attention_mask.lengths, dim=2) for tensor in (query, key, value)), strict=True)
    found = [
        sdpa_attention_forward(module, *part, mask, **options)[0]
        for part, mask in zip(parts, attention_mask.masks, strict=True)
    ]
    return torch.cat(found, dim=1), None


def side_by_side(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA in one call over rows of like length, padded at their ends: causal attention never looks at what comes after."""
    padded = [
        pad_sequence([row.transpose(0, 1) for row in torch.split(tensor[0], lengths, dim=1)], batch_first=True)
        for tensor in (query, key, value)
    ]
    found, _ = sdpa_attention_forward(module, *(one.transpose(1, 2) for one in padded), None, **options)
    return torch.cat([row[:length] for row, length in zip(found, lengths, strict=True)])[None], None


def _alike(rows: Rows) -> bool:
    """Whether one call with a little padding costs less than a call a row, each of which costs something by itself."""
    plain = len(rows.lengths) > 1 and all(mask is None for mask in rows.masks)
    return plain and len(rows.lengths) * max(rows.lengths) <= _PADDED_AT_MOST * sum(rows.lengths)


def rows_of(
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
) -> torch.Tensor | Rows | None:
    """The rows of a flat batch, from the mask that transformers would make; that mask itself for any other batch."""
    # transformers never lets a kernel assume plain causality where positions begin anew within a row.
    flat = batch_size == 1 and q_length == kv_length and attention_mask is None and not allow_is_causal_skip
    if not flat or use_vmap or q_length < 2:
        given = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "mask_function": mask_function}
        options |= {"attention_mask": attention_mask, "local_size": local_size, "use_vmap": use_vmap, "device": device}
        mask: torch.Tensor | None = sdpa_mask(**given, allow_is_causal_skip=allow_is_causal_skip, **options)
        return mask
    tokens = torch.arange(q_length, device=device)
    # A row begins at each token that does not see the one before it.
    begins = (~mask_function(0, 0, tokens[1:], tokens[:-1])).nonzero().flatten().tolist()
    bounds = [0, *(place + 1 for place in begins), q_length]
    spans = list(pairwise(bounds))
    masks = [
        None if local_size is None or end - start <= local_size else _mask(mask_function, tokens[start:end])
        for start, end in spans
    ]
    return Rows([end - start for start, end in spans], masks)


def _mask(mask_function: Callable[..., torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """What each of the tokens sees of them: shape (1, 1, tokens, tokens)."""
    return mask_function(0, 0, tokens[:, None], tokens[None, :])[None, None]

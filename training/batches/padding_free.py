"""Flat batches: rows concatenated into one without padding, and the checks that a model does not mix them."""

import inspect
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import is_flash_attention_requested

from training.batches.views import IGNORED, WEIGHTS, Tokens

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
_PROBE_TOKENS = 12  # in each of the two test rows
_TOLERANCE = {"fp32": 1e-3, "fp16": 0.05, "bf16": 0.1}  # rounding error, as a share of the largest logit


class FlatCollator:
    """Concatenates rows, or packs of rows: input_ids, labels, and position_ids that restart at 0 with each row.

    There is no attention mask: without one, transformers derives from the positions a mask that keeps rows apart. With
    `labeled_only` the head computes logits only where the next token carries loss. WEIGHTS, if rows have them, have the shape of
    the labels that are predicted. With `bounds` the batch has transformers' four arguments for flash kernels.
    """

    def __init__(self, *, labeled_only: bool, bounds: bool = False) -> None:
        self._labeled_only, self._bounds = labeled_only, bounds

    def __call__(self, items: list[Tokens] | list[list[Tokens]]) -> dict[str, Any]:
        rows: list[Tokens] = [row for item in items for row in (item if isinstance(item, list) else [item])]
        tokens = np.concatenate([row["input_ids"] for row in rows], dtype=np.int64)
        labels = np.concatenate([row["labels"] for row in rows], dtype=np.int64)
        lengths = np.array([len(row["input_ids"]) for row in rows])
        starts = np.cumsum(lengths) - lengths
        labels[starts] = IGNORED  # the token before it belongs to another row
        positions = np.arange(len(tokens)) - np.repeat(starts, lengths)
        batch = {"input_ids": tokens[None], "position_ids": positions[None], "labels": labels[None]}
        weights = np.concatenate([row[WEIGHTS] for row in rows]) if WEIGHTS in rows[0] else None
        if self._labeled_only:
            places = np.flatnonzero(labels[1:] != IGNORED)
            batch |= {"logits_to_keep": places, "shift_labels": labels[places + 1]}
            batch |= {} if weights is None else {WEIGHTS: weights[places + 1]}
        elif weights is not None:
            batch[WEIGHTS] = weights[None]
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        return tensors | flash_arguments(lengths) if self._bounds else tensors


def flash_arguments(lengths: np.ndarray) -> dict[str, Any]:
    """Returns transformers' `FlashAttentionKwargs` of concatenated rows: where they begin and end, and the longest.

    Without them, transformers derives them from the positions in each layer, and waits for the GPU each time.
    """
    ends = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    longest = int(lengths.max())
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def count_flat(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the numbers of tokens and rows of a flat batch, without synchronizing with the device."""
    return torch.tensor(inputs["input_ids"].numel()), (inputs["position_ids"] == 0).sum()


def base_of(model: torch.nn.Module) -> Any:
    """Returns the transformers model under an adapter, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def why_not_flat(model: torch.nn.Module) -> str:
    """Returns why this model cannot train on flat batches; empty if it can."""
    base = base_of(model)
    kinds = set(getattr(base.config, "layer_types", None) or ()) - _ATTENTION_LAYERS
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return "its adapter puts virtual tokens before each row of a batch"
    if type(base).__name__ not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "it is not a causal language model"
    if getattr(base, "_is_stateful", False) or kinds:
        return f"it carries state from token to token ({', '.join(sorted(kinds)) or type(base).__name__})"
    source = inspect.getsource(inspect.getmodule(type(base)))  # type: ignore[arg-type]
    problems = {
        "it builds its own attention mask": "create_causal_mask" not in source,
        "it changes its attention mask": "attention_mask.dtype" in source,
        "it takes no position_ids": "position_ids" not in inspect.signature(base.forward).parameters,
    }
    return next((problem for problem, is_so in problems.items() if is_so), "")


def takes_logits_to_keep(model: torch.nn.Module) -> bool:
    """True if the model takes `logits_to_keep` and passes `shift_labels` on to its loss."""
    base = base_of(model)
    names = inspect.signature(base.forward).parameters
    plain = getattr(base.loss_function, "__name__", "") == "ForCausalLMLoss"
    return plain and "logits_to_keep" in names and "kwargs" in names and "self.loss_function(" in _source(base.forward)


def takes_row_bounds(model: torch.nn.Module) -> bool:
    """True if the model computes attention with a flash kernel and passes further arguments on to it."""
    base = base_of(model)
    return is_flash_attention_requested(base.config) and "kwargs" in inspect.signature(base.forward).parameters


def cross_row_influence(model: torch.nn.Module, vocabulary: int, device: torch.device, precision: str) -> float:
    """Returns how much two rows of a flat batch influence each other; 1 or more means that the model mixes rows.

    It is the largest difference of their logits from those of the same rows alone, in units of the rounding tolerance of
    `precision`. Runs forward passes of a few tokens on every rank.
    """
    tokens = torch.arange(2 * _PROBE_TOKENS, device=device)[None] * 7919 % vocabulary
    positions = torch.arange(_PROBE_TOKENS, device=device)[None]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            flat = model(input_ids=tokens, position_ids=positions.repeat(1, 2), use_cache=False).logits
            largest = difference = 0.0
            # One row after another, since logits are large.
            for row, found in zip(tokens.chunk(2, 1), flat.chunk(2, 1), strict=True):
                alone = model(input_ids=row, position_ids=positions, use_cache=False).logits
                largest = max(largest, float(alone.abs().max()))
                difference = max(difference, float((found - alone).abs().max()))
    finally:
        model.train(was_training)
    return difference / max(_TOLERANCE[precision] * largest, 1e-12)


def _source(function: Any) -> str:
    return inspect.getsource(inspect.unwrap(function))

"""Batches without padding: rows laid end to end in one flat row, and whether a model keeps them apart there."""

import inspect
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from training.data import IGNORED, Tokens

_ATTENDING = {"full_attention", "sliding_attention", "chunked_attention"}
_PROBED = 12  # tokens in each of the two rows by which a model is tried
_TOLERANCE = {"fp32": 1e-3, "fp16": 0.05, "bf16": 0.1}  # of the largest logit: what rounding makes of it


class FlatCollator:
    """Lays rows, or packs of rows, end to end: input_ids, labels, and position_ids that begin anew with each row.

    There is no attention mask: transformers makes one in which no row sees another from positions that begin anew, and only
    where it is given none. With `keeps_labelled` the head is to make logits only where the next token carries loss.
    """

    def __init__(self, *, keeps_labelled: bool) -> None:
        self._keeps = keeps_labelled

    def __call__(self, items: list[Tokens] | list[list[Tokens]]) -> dict[str, torch.Tensor]:
        rows: list[Tokens] = [row for item in items for row in (item if isinstance(item, list) else [item])]
        tokens = np.concatenate([row["input_ids"] for row in rows], dtype=np.int64)
        labels = np.concatenate([row["labels"] for row in rows], dtype=np.int64)
        lengths = np.array([len(row["input_ids"]) for row in rows])
        starts = np.cumsum(lengths) - lengths
        labels[starts] = IGNORED  # what would predict it is the end of another row
        positions = np.arange(len(tokens)) - np.repeat(starts, lengths)
        batch = {"input_ids": tokens[None], "position_ids": positions[None], "labels": labels[None]}
        if self._keeps:
            kept = np.flatnonzero(labels[1:] != IGNORED)
            batch |= {"logits_to_keep": kept, "shift_labels": labels[kept + 1]}
        return {name: torch.from_numpy(values) for name, values in batch.items()}


def count_flat(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and rows of a flat batch, without waiting for the device."""
    return torch.tensor(inputs["input_ids"].numel()), (inputs["position_ids"] == 0).sum()


def base_of(model: torch.nn.Module) -> Any:
    """The transformers model under an adapter."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def why_not_flat(model: torch.nn.Module) -> str:
    """Why rows must not be laid end to end for this model; empty where they can be."""
    base = base_of(model)
    kinds = set(getattr(base.config, "layer_types", None) or ()) - _ATTENDING
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return "its adapter puts virtual tokens before each row of a batch"
    if type(base).__name__ not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "it is no causal language model"
    if getattr(base, "_is_stateful", False) or kinds:
        return f"it carries a state from token to token ({', '.join(sorted(kinds)) or type(base).__name__})"
    if "create_causal_mask" not in inspect.getsource(inspect.getmodule(type(base))):  # type: ignore[arg-type]
        return "it makes its attention mask itself"
    if "position_ids" not in inspect.signature(base.forward).parameters:
        return "it takes no position_ids"
    return ""


def keeps_labelled(model: torch.nn.Module) -> bool:
    """Whether the model's head can be told at which tokens to make logits, and its loss which labels those have."""
    base = base_of(model)
    taken = inspect.signature(base.forward).parameters
    plain = getattr(base.loss_function, "__name__", "") == "ForCausalLMLoss"
    return plain and "logits_to_keep" in taken and "kwargs" in taken and "self.loss_function(" in _source(base.forward)


def leak(model: torch.nn.Module, vocabulary: int, device: torch.device, precision: str) -> float:
    """How far two rows laid end to end are from the same rows alone: the largest difference of their logits in units of
    what rounding may make of them, so that 1 and more is a leak. A forward pass of few tokens on every rank."""
    tokens = torch.arange(2 * _PROBED, device=device)[None] * 7919 % vocabulary
    positions = torch.arange(_PROBED, device=device)[None]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            alone = [model(input_ids=row, position_ids=positions, use_cache=False).logits for row in tokens.chunk(2, 1)]
            flat = model(input_ids=tokens, position_ids=positions.repeat(1, 2), use_cache=False).logits
    finally:
        model.train(was_training)
    wanted = torch.cat(alone, 1)
    allowed = _TOLERANCE[precision] * float(wanted.float().abs().max())
    return float((flat - wanted).float().abs().max()) / max(allowed, 1e-12)


def _source(function: Any) -> str:
    return inspect.getsource(inspect.unwrap(function))

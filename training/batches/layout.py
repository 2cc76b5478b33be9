"""Chooses how rows become batches (padded, padding-free or packed), and explains the choice."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import is_flash_attention_requested

from training.batches.collators import Collator
from training.batches.sets import TokenDataset, count_loss_tokens, item_sets, sets_of, single_rows
from training.batches.streaming import Stream
from training.batches.views import IGNORED, WEIGHTS, Tokens
from training.config.choices import Packing, Precision
from training.config.run_config import RunConfig
from training.config.task import Task
from training.data.rows import DataRows
from training.errors import UserError
from training.models.attention import attend_row_by_row
from training.tables import only
from training.tokens.packing import order_of

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
_PROBE_TOKENS = 12  # in each of the two test rows
_TOLERANCE = only({Precision.FP32: 1e-3, Precision.FP16: 0.05, Precision.BF16: 0.1})
"""The rounding error, as a share of the largest logit."""
LOSSES_BY_SET = tuple(task for task in Task if not task.traits.is_preference and not task.traits.samples)
"""Tasks whose training loss is a mean over items that each belong to one data set."""


class FlatCollator:
    """Concatenates rows, or packs of rows: input_ids, labels, and position_ids that restart at 0 with each row.

    There is no attention mask: without one, transformers derives from the positions a mask that keeps rows apart. With
    `labeled_only` the head computes logits only where the next token carries loss. WEIGHTS, if rows have them, have the shape of
    the labels that are predicted. With `bounds` the batch has transformers' four arguments for flash kernels.
    """

    def __init__(self, *, labeled_only: bool, bounds: bool = False) -> None:
        self._labeled_only, self._bounds = labeled_only, bounds

    def __call__(self, items: list[Tokens] | list[list[Tokens]]) -> dict[str, Any]:
        rows: list[Tokens] = single_rows(items)
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


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """A context without gradient and dropout, after which the model trains as before."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), as_before(model):
            yield
    finally:
        model.train(was_training)


@contextmanager
def as_before(model: torch.nn.Module) -> Iterator[None]:
    """A context after which numbers that forward passes store in a model's layers are those of before: in an evaluation,
    NLLB-MoE's routers set their capacity to the tokens of the batch, beyond which a training step would then drop tokens."""
    stored = [(module, _numbers(module)) for module in model.modules() if _is_of_a_model(module)]
    try:
        yield
    finally:
        for module, numbers in stored:
            now = _numbers(module)
            for name, value in numbers.items():
                if name in now and now[name] != value:
                    setattr(module, name, value)


def _is_of_a_model(module: torch.nn.Module) -> bool:
    """True for a layer of transformers, also one that FSDP gave another class."""
    return any(kind.__module__.startswith("transformers.models.") for kind in type(module).__mro__)


def _numbers(module: torch.nn.Module) -> dict[str, float | None]:
    return {
        name: value
        for name, value in vars(module).items()
        if name != "training"
        and not name.startswith(("_", "ds_"))
        and (value is None or isinstance(value, int | float))
    }


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
    calls_loss = "self.loss_function(" in inspect.getsource(inspect.unwrap(base.forward))
    return plain and "logits_to_keep" in names and "kwargs" in names and calls_loss


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
    with evaluating(model):
        flat = model(input_ids=tokens, position_ids=positions.repeat(1, 2), use_cache=False).logits
        largest = difference = 0.0
        # One row after another, since logits are large.
        for row, found in zip(tokens.chunk(2, 1), flat.chunk(2, 1), strict=True):
            alone = model(input_ids=row, position_ids=positions, use_cache=False).logits
            largest = max(largest, float(alone.abs().max()))
            difference = max(difference, float((found - alone).abs().max()))
    return difference / max(_TOLERANCE[Precision(precision)] * largest, 1e-12)


class RunCollator:
    """The collator of a run: makes flat batches, or padded ones after `pad` (when the model proves to mix rows)."""

    def __init__(self, padded: Collator, flat: FlatCollator | None) -> None:
        self._padded, self._flat = padded, flat

    @property
    def flat(self) -> bool:
        return self._flat is not None

    def pad(self) -> None:
        """Switches to padded batches."""
        self._flat = None

    def __call__(self, rows: list[Tokens]) -> dict[str, Any]:
        batch = self._flat(rows) if self._flat else self._padded(rows)
        # A causal model predicts no first token.
        return batch | item_sets(rows, lambda row: count_loss_tokens(row["labels"][1:]))


@dataclass(frozen=True)
class Layout:
    """The chosen layout: `packing` is never AUTO; `reason` explains the choice and may be empty."""

    packing: Packing
    reason: str
    attention: str
    collator: RunCollator

    @property
    def description(self) -> str:
        """The sentence for the run's log."""
        how = only(
            {
                Packing.NONE: "Rows are padded to the longest of each batch",
                Packing.PADDING_FREE: "Rows are concatenated without padding",
                Packing.PACKED: "Rows are packed by best fit, without padding",
            }
        )[self.packing]
        return f"{how}{f': {self.reason}' if self.reason else ''}. Attention: {self.attention}."


def choose_layout(config: RunConfig, model: torch.nn.Module, pad_token_id: int) -> Layout:
    """Chooses the layout of a run's batches, and switches the model's attention to it where needed. Raises UserError if the model
    does not support the configured packing."""
    packing, reason = _packing(config, model)
    base = base_of(model)
    flat = None
    if packing is not Packing.NONE:
        flat = FlatCollator(labeled_only=takes_logits_to_keep(model), bounds=takes_row_bounds(model))
        if base.config._attn_implementation == "sdpa":
            attend_row_by_row(base)
    return Layout(packing, reason, str(base.config._attn_implementation), RunCollator(Collator(pad_token_id), flat))


def dataset(config: RunConfig, rows: Any, numbered: DataRows) -> Any:
    """Returns the training rows as a torch data set, with their order where it is not a plain shuffle."""
    if isinstance(rows, Stream):
        return rows
    sets = sets_of(rows, numbered)
    splits = config.task in LOSSES_BY_SET and config.sequence_parallel_size == 1
    return TokenDataset(rows, sets, order_of(config, rows.lengths, sets.ends), names_sets=splits)


def _packing(config: RunConfig, model: torch.nn.Module) -> tuple[Packing, str]:
    """Returns the packing and the reason for it."""
    if config.packing is Packing.NONE:
        return Packing.NONE, "as configured"
    problem = why_not_flat(model)
    if config.packing is not Packing.AUTO:
        if problem:
            name = type(base_of(model)).__name__
            message = f"does not fit {name}: {problem}, so rows would attend to each other."
            raise UserError("packing", config.packing.value, message, "Set packing to auto or none.")
        return config.packing, "as configured"
    if config.neftune_noise_alpha:
        # NEFTune scales its noise by the length of the input of the embeddings, which includes padding.
        return Packing.NONE, "NEFTune scales its noise by the padded length"
    return (Packing.NONE, problem) if problem else (Packing.PADDING_FREE, "")

"""Chooses how rows become batches (padded, padding-free or packed), and explains the choice."""

from dataclasses import dataclass
from typing import Any

import torch

from training.batches.collators import Collator
from training.batches.padding_free import FlatCollator, base_of, takes_logits_to_keep, takes_row_bounds, why_not_flat
from training.batches.samplers import TokenDataset
from training.batches.sets import item_sets, sets_of, tokens_after_first
from training.batches.streaming import Stream
from training.batches.views import Tokens
from training.config.choices import Packing, Task
from training.config.run_config import RunConfig
from training.data.rows import DataRows
from training.errors import UserError
from training.models.attention import attend_row_by_row
from training.tokens.packing import order_of

PLAIN = (Task.SFT, Task.PRETRAINING)
"""Language modeling tasks, whose rows can form flat batches."""
LOSSES_BY_SET = (*PLAIN, Task.SEQ2SEQ, Task.CLASSIFICATION)
"""Tasks whose training loss is a mean over items that each belong to one data set."""


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
        return batch | item_sets(rows, tokens_after_first)


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
        how = {
            Packing.NONE: "Rows are padded to the longest of each batch",
            Packing.PADDING_FREE: "Rows are concatenated without padding",
            Packing.PACKED: "Rows are packed by best fit, without padding",
        }[self.packing]
        return f"{how}{f': {self.reason}' if self.reason else ''}. Attention: {self.attention}."


def choose_layout(config: RunConfig, model: torch.nn.Module, pad_token_id: int) -> Layout:
    """Chooses the layout of a run's batches, and switches the model's attention to it where needed.

    Raises:
        UserError: the model does not support the configured packing.
    """
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

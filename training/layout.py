"""How rows become batches: padded, laid end to end, or packed. Which of them, and why, is said before the first step."""

from dataclasses import dataclass
from typing import Any

import torch

from training.attention import go_row_by_row
from training.config import Packing, RunConfig, Task
from training.data import Collator, TokenDataset, Tokens
from training.failure import UserError
from training.flat import FlatCollator, base_of, keeps_labelled, why_not_flat
from training.packing import order_of
from training.streaming import Stream

PLAIN = (Task.SFT, Task.PRETRAINING)
"""Tasks of plain language modelling, whose rows can be laid end to end."""


class Batches:
    """The collator of a run: without padding, until the model turns out not to keep rows apart."""

    def __init__(self, padded: Collator, flat: FlatCollator | None) -> None:
        self._padded, self._flat = padded, flat

    @property
    def flat(self) -> bool:
        return self._flat is not None

    def pad(self) -> None:
        """From now on rows are padded."""
        self._flat = None

    def __call__(self, rows: list[Tokens]) -> dict[str, torch.Tensor]:
        return self._flat(rows) if self._flat else self._padded(rows)


@dataclass(frozen=True)
class Layout:
    """What was chosen, in words too: `packing` is resolved, `reason` says why it is not another."""

    packing: Packing
    reason: str
    attention: str
    collator: Batches

    @property
    def words(self) -> str:
        """What the run says of it."""
        how = {
            Packing.NONE: "Rows are padded to the longest of a batch",
            Packing.PADDING_FREE: "Rows are laid end to end, without padding",
            Packing.PACKED: "Rows are packed by best fit, without padding",
        }[self.packing]
        return f"{how}{f': {self.reason}' if self.reason else ''}. Attention: {self.attention}."


def lay_out(config: RunConfig, model: torch.nn.Module, pad_token_id: int, *, on_cpu: bool) -> Layout:
    """Chooses, and sets the model's attention to go with it.

    Raises:
        UserError: what was asked for does not fit the model.
    """
    packing, reason = _packing(config, model)
    base = base_of(model)
    flat = None
    if packing is not Packing.NONE:
        flat = FlatCollator(keeps_labelled=keeps_labelled(model))
        if on_cpu and base.config._attn_implementation == "sdpa" and not config.torch_compile:
            go_row_by_row(base)
    return Layout(packing, reason, str(base.config._attn_implementation), Batches(Collator(pad_token_id), flat))


def dataset(config: RunConfig, rows: Any) -> Any:
    """The rows to train on as torch takes them, with their order where it is not simply shuffled."""
    if isinstance(rows, Stream):
        return rows
    return TokenDataset(rows, order_of(config, rows.lengths))


def _packing(config: RunConfig, model: torch.nn.Module) -> tuple[Packing, str]:
    """What is done of what was asked for, and why."""
    if config.packing is Packing.NONE:
        return Packing.NONE, "as asked for"
    problem = why_not_flat(model)
    if config.packing is not Packing.AUTO:
        if problem:
            name = type(base_of(model)).__name__
            message = f"does not fit {name}: {problem}, so that rows would see each other."
            raise UserError("packing", config.packing.value, message, "Set packing to auto or none.")
        return config.packing, "as asked for"
    if config.neftune_noise_alpha:
        # Its noise shrinks with the length of what comes to the embeddings, which padding is part of.
        return Packing.NONE, "NEFTune's noise goes by the padded length"
    return (Packing.NONE, problem) if problem else (Packing.PADDING_FREE, "")

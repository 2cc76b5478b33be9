"""What a simulation is asked: a run and the lengths of its batches, whose rows it makes."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from training.batches.layout import base_of, choose_layout
from training.batches.views import IGNORED, Tokens
from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.model_info.families import why_padded
from training.trainer.objectives import objective_of


@dataclass(frozen=True)
class PlacedBatch:
    """The batch of the first step or of later ones, and of their first micro steps or of later ones."""

    first_step: bool
    first_micro: bool
    lengths: list[int]
    targets: list[int] = field(default_factory=list)
    labeled: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class SimulationRequest:
    """A run, and the batch of one device: per row its tokens, its target's tokens (seq2seq) and its tokens with loss.

    `places`, if there are any, are the batches of all micro steps; without one for later steps there is only one.
    """

    config: RunConfig
    lengths: list[int]
    targets: list[int] = field(default_factory=list)
    labeled: list[int] = field(default_factory=list)
    places: list[PlacedBatch] = field(default_factory=list)
    device: Literal["cuda", "cpu"] = "cuda"
    precision: Precision = Precision.BF16
    tokenizer_size: int = 0
    classes: int = 0
    workspace_bytes: int = 0
    """cuBLAS's workspaces on the card (training/forecast/gpus.py)."""
    expandable_segments: bool = False
    flash: bool = True
    """Whether the card has FlashAttention kernels, for 16 bits: from Ampere on."""


def collator(model: torch.nn.Module, request: SimulationRequest) -> Any:
    """Returns the collator of the run."""
    config, pad = request.config, 0
    if config.task.traits.samples:
        return lambda prompts: _with_samples(prompts, config.max_completion_length)
    if not config.task.traits.is_language_modeling:
        return objective_of(config).collator(config, pad)
    chosen: Any = choose_layout(config, model, pad).collator
    if why_padded(base_of(model).config.model_type):  # a run finds that out by trying
        chosen.pad()
    return chosen


def rows_of(config: RunConfig, batch: SimulationRequest | PlacedBatch) -> list[Any]:
    """Returns the rows of a batch; of prompts with samples of the greatest length the lengths of the prompts."""
    if config.task.traits.samples:
        return [max(length - config.max_completion_length, 1) for length in batch.lengths]
    labeled = batch.labeled or batch.lengths
    targets = batch.targets or batch.lengths
    if config.task.traits.has_encoder:
        return [
            {"input_ids": _tokens(length), "labels": _tokens(target)}
            for length, target in zip(batch.lengths, targets, strict=True)
        ]
    rows = [_row(length, count) for length, count in zip(batch.lengths, labeled, strict=True)]
    if config.task.traits.has_classes:
        return [row | {"label": 0} for row in rows]
    if config.task.traits.pairs:
        return [{"chosen": row, "rejected": row} for row in rows]
    if config.task.traits.labels_answers:
        return [row | {"whole": row["input_ids"], "label": number % 2} for number, row in enumerate(rows)]
    return rows


def _with_samples(prompts: list[int], longest: int) -> dict[str, torch.Tensor]:
    """The batch of prompts with samples of `longest` tokens, as training/trainer/policy_objective.py makes it."""
    shapes = {"prompt": (len(prompts), max(prompts)), "completion": (len(prompts), longest)}
    tokens = {f"{part}_ids": torch.ones(shape, dtype=torch.long) for part, shape in shapes.items()}
    masks = {f"{part}_mask": torch.ones(shape, dtype=torch.long) for part, shape in shapes.items()}
    reference = torch.zeros(shapes["completion"])  # only a KL divergence reads it
    return tokens | masks | {"advantages": torch.ones(len(prompts)), "ref_per_token_logps": reference}


def _row(length: int, labeled: int) -> Tokens:
    tokens = _tokens(length)
    return {"input_ids": tokens, "labels": np.where(np.arange(length) < length - labeled, np.int32(IGNORED), tokens)}


def _tokens(count: int) -> Any:
    return np.ones(count, dtype=np.int32)

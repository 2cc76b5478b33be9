"""The training program; every rank records its batches: step, micro step, rows, tokens with padding, a weighted sum."""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from training import train
from training.trainer.reporting_trainer import ReportingTrainer

FILE = Path(sys.argv[1]) / f"batches-{os.environ.get('RANK', '0')}.txt"
_step = ReportingTrainer.training_step
_seen: dict[int, int] = {}


def _recorded(self: ReportingTrainer, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
    step = self.state.global_step + 1
    _seen[step] = _seen.get(step, 0) + 1
    tokens = inputs["input_ids"]
    rows, mask, columns = len(tokens), inputs.get("attention_mask", torch.tensor(1)), torch.arange(tokens.shape[1])
    if "position_ids" in inputs:  # concatenated rows
        rows, columns = int((inputs["position_ids"] == 0).sum()), inputs["position_ids"]
    weights = (tokens * mask * (columns + 1)).sum()
    with FILE.open("a") as stream:
        stream.write(f"{step} {_seen[step]} {rows} {tokens.numel()} {int(weights)}\n")
    return _step(self, model, inputs, num_items_in_batch)


ReportingTrainer.training_step = _recorded  # type: ignore[method-assign]
train.main()

"""The training program, with every rank writing down its batches: step, micro step, rows, length, a weighted sum of the tokens."""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from training import train
from training.reporting import Reporting

FILE = Path(sys.argv[1]) / f"batches-{os.environ.get('RANK', '0')}.txt"
_step = Reporting.training_step
_seen: dict[int, int] = {}


def _recorded(self: Reporting, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
    step = self.state.global_step + 1
    _seen[step] = _seen.get(step, 0) + 1
    rows, length = inputs["input_ids"].shape
    weights = (inputs["input_ids"] * inputs["attention_mask"] * torch.arange(1, length + 1)).sum()
    with FILE.open("a") as stream:
        stream.write(f"{step} {_seen[step]} {rows} {length} {int(weights)}\n")
    return _step(self, model, inputs, num_items_in_batch)


Reporting.training_step = _recorded  # type: ignore[method-assign]
train.main()

"""The training program on a machine whose second rank has no room for batches of four rows, from step 3 on."""

import os
from typing import Any

import torch

from training import train
from training.reporting import Reporting

_step = Reporting.training_step


def _limited(self: Reporting, model: Any, inputs: Any, *arguments: Any) -> Any:
    if os.environ["RANK"] == "1" and self.state.global_step >= 2 and self.args.per_device_train_batch_size >= 4:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return _step(self, model, inputs, *arguments)


Reporting.training_step = _limited  # type: ignore[method-assign]
train.main()

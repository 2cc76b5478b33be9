"""The training program; rank 1 is slow in every forward pass, and stops in that of step 25 until the file `continue` exists."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from training import train
from training.ranks import pace
from training.trainer.reporting_trainer import ReportingTrainer

pace.HANG_SECONDS, pace.LOOK_SECONDS = 1.0, 0.1
_loss = ReportingTrainer.compute_loss


def _slow(self: ReportingTrainer, *arguments: Any, **named: Any) -> Any:
    while self.state.global_step + 1 == 25 and not (Path(sys.argv[1]) / "continue").exists():
        time.sleep(0.1)
    began = time.monotonic()
    loss = _loss(self, *arguments, **named)
    time.sleep(0.1 + 2 * (time.monotonic() - began))  # slower than rank 0 on a busy machine too
    return loss


if os.environ.get("RANK") == "1":
    ReportingTrainer.compute_loss = _slow  # type: ignore[method-assign]
train.main()

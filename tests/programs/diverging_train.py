"""The training program; from the step that RUN_DIR/nan names on, the losses of rank 1 are NaN."""

import math
import os
import sys
from pathlib import Path
from typing import Any

from training import train
from training.trainer.reporting_trainer import ReportingTrainer

FIRST = int((Path(sys.argv[1]) / "nan").read_text())
_loss = ReportingTrainer.compute_loss


def _broken(self: ReportingTrainer, *arguments: Any, **named: Any) -> Any:
    return _loss(self, *arguments, **named) * (math.nan if self.state.global_step + 1 >= FIRST else 1)


if os.environ.get("RANK") == "1":
    ReportingTrainer.compute_loss = _broken  # type: ignore[method-assign]
train.main()

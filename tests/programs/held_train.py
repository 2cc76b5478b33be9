"""The training program; each rank waits in the step after the one that RUN_DIR/hold names until the file RUN_DIR/go is there."""

import sys
import time
from pathlib import Path
from typing import Any

from training import train
from training.trainer.reporting_trainer import ReportingTrainer

RUN_DIR = Path(sys.argv[1])
HOLD = int((RUN_DIR / "hold").read_text())
_step = ReportingTrainer.training_step


def _held(self: ReportingTrainer, *arguments: Any, **named: Any) -> Any:
    while self.state.global_step == HOLD and not (RUN_DIR / "go").exists():
        time.sleep(0.02)
    return _step(self, *arguments, **named)


ReportingTrainer.training_step = _held  # type: ignore[method-assign]
train.main()

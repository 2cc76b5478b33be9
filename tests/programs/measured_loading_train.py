"""The training program; each rank writes to RUN_DIR/loading-RANK.json what anonymous memory the loaded model takes, in bytes."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from training import train
from training.models import loading
from training.trainer.reporting_trainer import ReportingTrainer

FILE = Path(sys.argv[1]) / f"loading-{os.environ.get('RANK', '0')}.json"
load_trainable, training_step = loading.load_trainable, ReportingTrainer.training_step
measured: dict[str, int] = {}


def anonymous_bytes() -> int:
    """The process's memory that is no part of a file: the kernel cannot take it back without swap."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(kib) for kib in re.findall(r"^Anonymous: +(\d+) kB$", text, re.MULTILINE)) * 1024


def measured_load(*arguments: Any, **named: Any) -> Any:
    measured["before"] = anonymous_bytes()
    model = load_trainable(*arguments, **named)
    measured["loaded"] = anonymous_bytes()
    return model


def measured_step(self: ReportingTrainer, *arguments: Any, **named: Any) -> Any:
    if "placed" not in measured:
        measured["placed"] = anonymous_bytes()
        FILE.write_text(json.dumps(measured))
    return training_step(self, *arguments, **named)


if __name__ == "__main__":
    loading.load_trainable = measured_load
    ReportingTrainer.training_step = measured_step
    train.main()

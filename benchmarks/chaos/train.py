"""Runs the training program for benchmarks.chaos, with a lock that detects a second trainer of the same run."""

import os
import sys
from pathlib import Path

from benchmarks.chaos.ranks import hold_alone
from training import train

if __name__ == "__main__":
    _lock = hold_alone(Path(sys.argv[1]), int(os.environ.get("RANK", "0")))
    train.main()

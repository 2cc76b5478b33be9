"""Runs `training.data.inspection` for each of several files in one process; prints a report a line."""

import sys
from pathlib import Path

from training.data import inspection

for file in sys.argv[1:]:
    sys.argv[1:] = [file, f"--name={Path(file).name}"]
    inspection.main()

"""Prints the file that its argument names."""

import sys
from pathlib import Path

sys.stdout.write(Path(sys.argv[1]).read_text())

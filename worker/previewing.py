"""The first rows of a stored data set as a model would get them, read in a process with limits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from worker import checking

_MODULE = "training.preview"
_SECONDS = 10


def first_rows(path: Path, count: int, columns: str | None = None) -> list[dict[str, Any]]:
    """What `training.preview` says of the file; one row with the problem where it did not survive it."""
    limits = [str(checking.MEMORY_BYTES + path.stat().st_size), str(_SECONDS)]
    given = ["--columns", columns] if columns else []
    command = [sys.executable, "-m", "worker.limited", *limits, _MODULE, str(path), str(count), *given]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=checking.environment(),
            timeout=3 * _SECONDS,
            check=True,
        )
        rows: list[dict[str, Any]] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return [
            {
                "number": 1,
                "problem": "The first rows could not be read.",
                "fix": "Check the file: lathe dataset check FILE",
            }
        ]
    return rows

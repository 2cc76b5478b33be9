"""The first rows of a stored data set as a model gets them, read in a process with limits."""

from pathlib import Path
from typing import Any

from worker.datasets import checking
from worker.machine import programs
from worker.machine.programs import Limits, ProgramError

_SECONDS = 10


def first_rows(path: Path, count: int, columns: str | None = None) -> list[dict[str, Any]]:
    """The first `count` rows as `training.data.inspection` prints them; if it fails, one row with the problem."""
    limits = Limits(checking.MEMORY_BYTES + path.stat().st_size, _SECONDS)
    mapping = ["--columns", columns] if columns else []
    try:
        arguments = [str(path.absolute()), "--first", str(count), *mapping]
        rows: list[dict[str, Any]] = programs.run_for_json(programs.INSPECTION, arguments, limits)
    except ProgramError:
        fix = "Check the file: lathe dataset check FILE"
        return [{"number": 1, "problem": "The first rows could not be read.", "fix": fix}]
    return rows

"""Whether each form of a run's result renders and answers as the trained model did."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from training import json_files
from training.run_folder.paths import PARITY_FILE, PARITY_FOLDER
from worker.machine import programs
from worker.machine.programs import ProgramError
from worker.results import results
from worker.settings import get_settings
from worker.store.tables import Run


def latest(run: Run) -> dict[str, Any] | None:
    """The latest verification: of `lathe verify` on this machine, else that at the end of training. None if there is none."""
    file = get_settings().runs_dir / run.id / PARITY_FILE
    try:
        found: dict[str, Any] = json_files.read(file)
    except (OSError, ValueError):
        return (run.summary or {}).get("parity")
    return found


def verify(run: Run, forms: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Compares forms of a finished run's result with what was trained (default: all); yields each as it is done.

    `latest` then returns the whole document.

    Raises:
        NoResult: there is nothing to compare, or the comparison failed.
    """
    results.find(run)
    run_dir = get_settings().runs_dir / run.id
    if not (run_dir / PARITY_FOLDER).is_dir():
        fix = "Runs with verify_rows above 0 keep rows for it, except those of pretraining and seq2seq."
        raise results.NoResult("run", run.id, "keeps no prompts to compare.", fix)
    try:
        with closing(results.printed(programs.VERIFY, str(run_dir), *forms)) as lines:
            yield from lines
    except ProgramError as error:
        fix = "Check that the base model is on this machine, then try again."
        raise results.NoResult("run", run.id, f"could not be verified: {error}", fix) from None

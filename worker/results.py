"""The folders of a finished run's results on this machine; one that is not there yet is made by the training program."""

import os
import subprocess
import sys
from pathlib import Path

from training.config import Method
from worker.archive import GGUF_FILE, MERGED_FOLDER, result_folder
from worker.models import Run, Status
from worker.settings import PREFIX, ROOT, get_settings, hub_token

_LAST_LINES = 3


class NoResult(ValueError):  # noqa: N818 - it says what there is not
    """A result that a run does not have, with what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


def find(run: Run, *, merged: bool = False) -> Path:
    """The folder of the adapter or model, or of the adapter merged into its base, which is made where it is not there yet.

    Raises:
        NoResult: there is none, or it cannot be made.
    """
    run_dir = get_settings().runs_dir / run.id
    result = result_folder(run_dir)
    if run.status is not Status.FINISHED or result is None:
        raise _missing(run, run_dir)
    if not merged:
        return result
    if run.config.get("method") == Method.FULL:
        raise NoResult(f"Run {run.id} trained a whole model: there is nothing to merge.", "Leave --merged out.")
    folder = run_dir / MERGED_FOLDER
    if not folder.is_dir():
        _run("training.merging", str(run_dir))
    return folder


def gguf(run: Run) -> Path:
    """The model as one GGUF file, with an adapter merged into its base; made where it is not there yet.

    Raises:
        NoResult: there is no result, or none that can be converted.
    """
    folder = find(run, merged=run.config.get("method") != Method.FULL)
    target = folder.parent / GGUF_FILE
    if not target.is_file():
        _run("training.gguf_export", str(folder), str(target))
    return target


def _missing(run: Run, run_dir: Path) -> NoResult:
    if not run.status.ended:
        return NoResult(
            f"Run {run.id} is {run.status.value}: its adapter is written at the end.", f"Wait for it: lathe show {run.id}"
        )
    if run.status is not Status.FINISHED:
        return NoResult(f"Run {run.id} is {run.status.value}: it has no adapter.", f"Go on with it: lathe resume {run.id}")
    fix = "Export it on the machine that trained it, or set LATHE_DATA_DIR to the folder that both share."
    return NoResult(f"Run {run.id} has no result in {run_dir}.", fix)


def _run(module: str, *arguments: str) -> None:
    """Runs a part of the training program to its end; what it says of its failure is raised.

    Raises:
        NoResult: it failed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    secret = hub_token()  # the base model may be a gated one
    env = kept | {"PYTHONPATH": str(ROOT)} | ({"HF_TOKEN": secret} if secret else {})
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-_LAST_LINES:] or [f"{module} ended with exit code {done.returncode}"]
        raise NoResult("It cannot be made: " + " ".join(lines), "")

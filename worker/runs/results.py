"""The results of a finished run on this machine; merged and GGUF models are created on demand."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from training.config.choices import Method
from training.errors import UserError
from training.run_folder.gguf_types import ADAPTER_GGUF_FILE, GgufType
from training.run_folder.paths import MERGED_FOLDER, saved_result
from worker.machine import programs
from worker.runs import fetching
from worker.settings import PREFIX, ROOT, get_settings, hub_token
from worker.store.tables import Run

_LAST_LINES = 3
_FIX = "Check that the base model is on this machine and that its disk has space, then try again."


class NoResult(UserError):  # noqa: N818
    """The run does not have this result."""


def find(run: Run, *, merged: bool = False) -> Path:
    """The folder of the adapter or model; with `merged`, of the adapter merged into its base, created if needed.

    Raises:
        NoResult: there is none, or it cannot be created.
        NotFetched: it is on another machine and cannot be downloaded.
    """
    run_dir = get_settings().runs_dir / run.id
    fetching.fetch(run)
    result = saved_result(run_dir)
    if not run.has_result or result is None:
        raise _missing(run, run_dir)
    if not merged:
        return result
    if run.config.get("method") == Method.FULL:
        raise NoResult("run", run.id, "is a full fine-tuning: there is nothing to merge.", "Omit --merged.")
    folder = run_dir / MERGED_FOLDER
    if not folder.is_dir():
        _run(run, programs.MERGING, str(run_dir))
    return folder


def gguf(run: Run, kind: GgufType = GgufType.TRAINED, tell: Callable[[str], None] = lambda _note: None) -> Path:
    """The model as one GGUF file, with an adapter merged into its base; created if needed.

    `tell` receives sentences about a file that was created.

    Raises:
        NoResult: there is no result, or none that can be converted.
    """
    made = (get_settings().runs_dir / run.id / kind.file).is_file()
    if kind.by_llama_cpp and not made and find_spec("llama_cpp") is None:  # told before a large model is merged
        fix = "Install it (pip install 'lathe-workbench[llama]' compiles it with g++ and cmake), or choose Q8_0."
        raise NoResult("type", kind.value, "needs llama.cpp, which is not installed.", fix)
    folder = find(run, merged=run.config.get("method") != Method.FULL)
    target = folder.parent / kind.file
    if not target.is_file():
        for note in _run(run, programs.GGUF, str(folder), str(target), kind.value):
            tell(note)
    return target


def gguf_adapter(run: Run) -> Path:
    """The LoRA adapter as a GGUF file for llama.cpp; created if needed.

    Raises:
        NoResult: there is no adapter, or none that llama.cpp can apply.
    """
    run_dir = find(run).parent
    if run.config.get("method") == Method.FULL:
        raise NoResult("run", run.id, "is a full fine-tuning: there is no adapter.", "Omit --adapter.")
    target = run_dir / ADAPTER_GGUF_FILE
    if not target.is_file():
        _run(run, programs.GGUF_ADAPTER, str(run_dir), str(target))
    return target


def gather(run: Run, target: Path, step: int | None = None) -> Path:
    """Writes the adapter or model of a checkpoint whose weights are in shards to the folder `target`, and returns it.

    Raises:
        NoResult: the run has no such checkpoint here (default: the newest), or its weights cannot be gathered.
    """
    steps = [] if step is None else [str(step)]
    _run(run, programs.GATHERING, str(get_settings().runs_dir / run.id), str(target), *steps)
    return target


def _missing(run: Run, run_dir: Path) -> NoResult:
    if not run.status.ended:
        message, fix = f"is {run.status.value}: its result is saved at the end.", f"Wait for it: lathe show {run.id}"
        return NoResult("run", run.id, message, fix)
    if not run.has_result:
        message, fix = f"is {run.status.value}: it has no result.", f"Resume it: lathe resume {run.id}"
        return NoResult("run", run.id, message, fix)
    fix = "Export it on the machine that trained it, or set LATHE_DATA_DIR to the folder that both machines share."
    return NoResult("run", run.id, f"has no result in {run_dir}.", fix)


def _run(run: Run, module: str, *arguments: str) -> list[str]:
    """Runs a program of `training` that makes a result of the run. Returns the lines that it printed.

    Raises:
        NoResult: it failed; with the last lines that it printed.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-_LAST_LINES:] or [f"{module} ended with exit code {done.returncode}"]
        raise NoResult("run", run.id, "the result could not be created: " + " ".join(lines), _FIX)
    return done.stdout.splitlines()


def environment() -> dict[str, str]:
    """The environment of programs that load a run's model, which may be a gated one: with the hub's token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    secret = hub_token()
    return kept | {"PYTHONPATH": str(ROOT)} | ({"HF_TOKEN": secret} if secret else {})

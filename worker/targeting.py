"""What a run's method would train in its model, found out by a process with limits (training/targets.py)."""

import json
import os
import subprocess
import sys
from typing import Any

from training.config import RunConfig
from worker.checking import environment
from worker.reach import find_path
from worker.settings import ROOT

_MODULE = "training.targets"
_MEMORY_BYTES = 8 * 2**30
_SECONDS = 120  # of processor time: importing the libraries is most of it
_LARGEST_FILE = 64 * 2**20  # what a hub may send of a model besides its weights
_HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN")

Finding = dict[str, Any]
"""A `Targets` as JSON, or a `problem` with field, value, message and fix."""


def look(config: RunConfig) -> Finding:
    """What trains: counts of parameters, and the modules in groups; or the problem that keeps it from being known."""
    local = find_path(config.model)
    asked = config.model_copy(update={"model": str(local)}) if local else config
    limits = [str(limit) for limit in (_MEMORY_BYTES, _SECONDS, _LARGEST_FILE)]
    command = [sys.executable, "-m", "worker.limited", "--writing", *limits, _MODULE, "--config", "-"]
    kept = {name: os.environ[name] for name in _HUB_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(
            command,
            input=asked.model_dump_json().encode(),
            capture_output=True,
            env=environment() | kept,
            cwd=ROOT,
            timeout=2 * _SECONDS,
            check=True,
        )
        found: Finding = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"problem": _failed(config, error)}
    return found


def _failed(config: RunConfig, error: Exception) -> dict[str, str]:
    printed = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
    reason = printed[-1] if printed else type(error).__name__
    fix = "Check that the model can be loaded, and that the training packages are installed here."
    return {"field": "model", "value": config.model, "message": f"cannot be looked at ({reason}).", "fix": fix}

"""The memory of a run's training step, simulated by a process with limits (training/simulate.py)."""

import json
import os
import subprocess
import sys
from typing import Any

from training.config import Precision, RunConfig
from worker.checking import environment
from worker.reach import find_path
from worker.settings import ROOT

_MODULE = "training.simulate"
_MEMORY_BYTES = 12 * 2**30
_SECONDS = 300  # of processor time; a 7B model takes some 60
_LARGEST_FILE = 64 * 2**20  # what a hub may send of a model besides its weights
_HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN")

Finding = dict[str, Any]
"""A `Simulation` as JSON, or a `problem` with field, value, message and fix."""


def simulate(config: RunConfig, precision: Precision, lengths: list[int], **batch: Any) -> Finding:
    """Peak and timeline of a step on rows of these lengths; `batch` are the other fields of a `Request`."""
    local = find_path(config.model)
    asked = config.model_copy(update={"model": str(local)}) if local else config
    request = {"config": asked.model_dump(mode="json"), "precision": precision.value, "lengths": lengths, **batch}
    limits = [str(limit) for limit in (_MEMORY_BYTES, _SECONDS, _LARGEST_FILE)]
    command = [sys.executable, "-m", "worker.limited", "--writing", *limits, _MODULE, "--request", "-"]
    kept = {name: os.environ[name] for name in _HUB_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request).encode(),
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
    late = isinstance(error, subprocess.TimeoutExpired) or getattr(error, "returncode", 0) == -24  # SIGXCPU
    reason = f"it took more than {_SECONDS} s" if late else printed[-1] if printed else type(error).__name__
    fix = "Go by the forecast, which is worked out from config.json; or simulate a shorter batch."
    return {"field": "model", "value": config.model, "message": f"cannot be simulated ({reason}).", "fix": fix}

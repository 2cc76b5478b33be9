"""Compiles DeepSpeed's operators in the background of a worker, so that the first run with offloading does not wait for it."""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from training import operator_cache
from worker.machine import devices, processes
from worker.settings import PREFIX, ROOT, SettingsError, get_settings

log = logging.getLogger(__name__)

_AFTER_SECONDS = 15.0  # lets the worker and a first run start first
_LOG_FILE = "operators.log"


def compile_in_background() -> subprocess.Popen[bytes] | None:
    """Starts the compilation, which ends with the calling thread at the latest.

    None without a GPU, where runs need no operator, or if it cannot be started.
    """
    folder = get_settings().data_dir / "logs"
    try:
        if not devices.usable_gpus():
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = [sys.executable, "-m", operator_cache.AHEAD_MODULE, str(_AFTER_SECONDS)]
        started = processes.start_child(
            argv, output=folder / _LOG_FILE, cwd=ROOT, env=_environment(), death_signal=signal.SIGTERM
        )
    except (OSError, SettingsError) as error:  # reported again where the folder or the devices are needed
        log.warning("DeepSpeed's operators are not compiled ahead: %s", error)
        return None
    threading.Thread(target=started.wait, name="operators", daemon=True).start()  # avoids a zombie
    return started


def _environment() -> dict[str, str]:
    """The environment of a run: without Lathe's secrets, with the ninja beside this Python."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return inherited | {"PATH": path, "PYTHONUNBUFFERED": "1"}

"""Compiling DeepSpeed's operators ahead, in the background of a worker, so that a first ZeRO run need not wait for it."""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from training import operators
from worker import devices, process
from worker.settings import PREFIX, ROOT, SettingsError, get_settings

log = logging.getLogger(__name__)

_AFTER_SECONDS = 15.0  # what has just been started, and a first run, come first
_LOG_FILE = "operators.log"


def compile_in_background() -> subprocess.Popen[bytes] | None:
    """Starts it, to end with the thread that calls this at the latest. None where it cannot be started, which harms nothing."""
    folder = get_settings().data_dir / "logs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = [sys.executable, "-m", operators.AHEAD_MODULE, str(_AFTER_SECONDS)]
        started = process.start_child(
            argv, output=folder / _LOG_FILE, cwd=ROOT, env=_environment(), death_signal=signal.SIGTERM
        )
    except (OSError, SettingsError) as error:  # said again by what needs the folder or the devices
        log.warning("DeepSpeed's operators are not compiled ahead: %s", error)
        return None
    threading.Thread(target=started.wait, name="operators", daemon=True).start()  # no zombie stays
    return started


def _environment() -> dict[str, str]:
    """As a run's: without secrets of ours, with the ninja beside this Python, and with DeepSpeed told what it runs on."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    on_cpu = {} if devices.usable_gpus() else {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return inherited | {"PATH": path, "PYTHONUNBUFFERED": "1"} | on_cpu

"""Programs as forks of a process that has imported the training libraries (programs/warm_launcher.py): importing them takes longer
than most of what tests have them do. All processes of a session of pytest share one; the first that needs it starts it.
"""

import atexit
import fcntl
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import patience
import psutil
import pytest
from paths import PROGRAMS, ROOT

from training.config.run_config import RunConfig
from training.limited import ARROW
from worker.supervision.launcher import launch

_PROGRAM = str(PROGRAMS / "warm_launcher.py")

# Packages may be installed beside the environment.
PYTHONPATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def forked(request: dict[str, Any]) -> int:
    """The process ID of a fork that does what warm_launcher.py reads in the request."""
    with _connected() as connection, connection.makefile("rw") as stream:
        stream.write(json.dumps(request) + "\n")
        stream.flush()
        return int(stream.readline())


def run(code: str) -> None:
    """Runs the code in a fork; fails with its output if it fails."""
    done = patience.run([str(python()), "-c", code], stderr=subprocess.STDOUT, cwd=ROOT)
    assert not done.returncode, done.stdout.decode()


def use_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process, and the forks, start `sys.executable -m MODULE` and `-c CODE` as forks (programs/warm_python.py)."""
    monkeypatch.setattr(sys, "executable", str(python()))


@cache
def python() -> Path:
    """A program that starts as an interpreter does, as a fork."""
    _connected().close()
    script = folder() / f"python-{os.getpid()}"
    words = [sys.executable, "-IS", str(PROGRAMS / "warm_python.py"), str(folder() / "socket"), str(script)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o700)
    return script


def _connected() -> socket.socket:
    """A connection to the session's warm launcher, which the first call starts."""
    place = folder()
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(place / "socket"))
        except (FileNotFoundError, ConnectionRefusedError):
            _start_warm_launcher(place)
            connection.connect(str(place / "socket"))
        return connection


def _start_warm_launcher(place: Path) -> None:
    (place / "socket").unlink(missing_ok=True)
    env = os.environ | launch(RunConfig(model="any", data="any"), Path(), ["here/cpu"]).env | {"PYTHONPATH": PYTHONPATH}
    env |= ARROW  # a program is confined after its imports, which start no threads
    argv = [sys.executable, _PROGRAM, str(place), str(_session())]
    with (place / "output.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    atexit.register(process.poll)  # keeps it: a Popen that is collected warns of its process, which outlives this one

    def listens() -> bool:
        assert process.poll() is None, (place / "output.log").read_text()
        return (place / "socket").exists()

    patience.eventually(listens, [process])


def is_launcher(process: psutil.Process) -> bool:
    """True for the session's warm launcher."""
    return _PROGRAM in process.cmdline()


def _session() -> int:
    """The process ID of this session of pytest: of this process, or of the one that has started it as one of several."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


@cache
def folder() -> Path:
    """The warm launcher's folder: its socket and log, and a file for each exit code. It removes the folder."""
    place = Path(tempfile.gettempdir()) / f"lathe-launcher-{_session()}"
    place.mkdir(exist_ok=True)
    return place

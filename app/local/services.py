"""The processes that `lathe up` starts and restarts."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from worker.machine import processes
from worker.settings import ROOT

RESTARTS = 5
RESTART_WINDOW_SECONDS = 600.0
_LOG_BYTES = 10 * 2**20
_LOG_LINES = 15


class ServiceFailed(RuntimeError):  # noqa: N818
    """A service ends repeatedly; the message contains the end of its log."""


class Service:
    """A process that is restarted when it ends by itself, up to 5 times in 10 minutes.

    It has its own session, so that Ctrl-C in the terminal reaches only `lathe up`, and gets SIGTERM if `lathe up` is killed.
    """

    def __init__(self, name: str, start: Callable[[], subprocess.Popen[bytes]], log: Path) -> None:
        self.name = name
        self.log = log
        self._start = start
        self._process: subprocess.Popen[bytes] | None = None
        self._starts: deque[float] = deque(maxlen=RESTARTS + 1)

    def start(self) -> None:
        """Starts the process."""
        self._starts.append(time.monotonic())
        self._process = self._start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ended(self) -> int | None:
        """The exit code, None while the process runs."""
        return self._process.poll() if self._process else None

    def activity(self) -> processes.Activity:
        """Whether its process, which was started, does anything from now on."""
        assert self._process
        return processes.Activity(self._process.pid)

    def keep_running(self) -> bool:
        """Restarts the process if it has ended. Returns True if it had. Raises ServiceFailed if it ended too often."""
        self._rotate()
        code = self.ended()
        if code is None:
            return False
        full = len(self._starts) == self._starts.maxlen
        if full and time.monotonic() - self._starts[0] < RESTART_WINDOW_SECONDS:
            raise ServiceFailed(
                self.explain(f"The {self.name} ended {RESTARTS + 1} times in 10 minutes (exit code {code}).")
            )
        self.start()
        return True

    def _rotate(self) -> None:
        """Moves the content of a long log beside it. The process keeps its open file, to which it appends."""
        with contextlib.suppress(OSError):  # no log yet, or a full disk: later
            if self.log.stat().st_size > _LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_suffix(".old.log"))
                os.truncate(self.log, 0)

    def stop(self, seconds: float) -> None:
        """Sends SIGTERM, and SIGKILL after `seconds`."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return
        self._process.kill()
        self._process.wait()

    def explain(self, message: str) -> str:
        """`message` with the end of the service's log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        tail = "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
        return f"{message} The end of {self.log}:\n{tail}"


def python_service(name: str, argv: list[str], log: Path, env: Mapping[str, str]) -> Service:
    """A Python service that logs to `log`; `env` extends this process's environment."""

    def start() -> subprocess.Popen[bytes]:
        log.parent.mkdir(parents=True, exist_ok=True)
        merged = os.environ | env | {"PYTHONUNBUFFERED": "1"}
        return processes.start_child(argv, output=log, cwd=ROOT, env=merged, death_signal=signal.SIGTERM)

    return Service(name, start, log)

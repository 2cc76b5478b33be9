"""A supervisor that has loaded everything and waits for a run: to load Python and SQLAlchemy takes a second of the CPU."""

import os
import subprocess
import sys
from pathlib import Path

from worker.models import Run
from worker.settings import ROOT

FLAG = "--standby"
SUPERVISOR_LOG = "supervisor.log"


class Standby:
    """Keeps at most one process waiting. It ends by itself when this process does."""

    def __init__(self) -> None:
        self._waiting: subprocess.Popen[bytes] | None = None

    def prepare(self, command: list[str]) -> None:
        """Starts `command`, which ends with `--standby`, unless one waits already."""
        if self._waiting is None or _ended(self._waiting):
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._waiting = subprocess.Popen(
                command, stdin=pipe, stdout=nothing, stderr=nothing, cwd=ROOT, start_new_session=True
            )

    def take(self, run: Run) -> subprocess.Popen[bytes] | None:
        """The waiting process, told to see the run through; None where none waits."""
        taken, self._waiting = self._waiting, None
        if taken is None or _ended(taken) or taken.stdin is None:
            return None
        try:
            with taken.stdin as stdin:
                stdin.write(f"{run.id} {run.attempt}\n".encode())
        except BrokenPipeError:  # it ended this moment
            return None
        return taken


def _ended(waiting: subprocess.Popen[bytes]) -> bool:
    if waiting.poll() is None:
        return False
    if waiting.stdin:
        waiting.stdin.close()
    return True


def assignment(runs_dir: Path) -> list[str]:
    """In the process that waits: the run and attempt it is told, with its output turned to the run's log; [] for none."""
    words = sys.stdin.readline().split()
    if words:
        log = os.open(runs_dir / words[0] / SUPERVISOR_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for new, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(new, number)
    return words

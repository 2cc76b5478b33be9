"""A supervisor process that is started ahead and waits for a run: loading Python and SQLAlchemy takes a second."""

import os
import subprocess
import sys
from pathlib import Path

from worker.settings import ROOT
from worker.store.tables import Run

FLAG = "--standby"
SUPERVISOR_LOG = "supervisor.log"


class Standby:
    """Keeps at most one waiting process. It ends when this process ends."""

    def __init__(self) -> None:
        self._waiting: subprocess.Popen[bytes] | None = None

    def prepare(self, command: list[str]) -> None:
        """Starts `command`, which ends with `--standby`, unless a process is waiting already."""
        if self._waiting is None or _ended(self._waiting):
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._waiting = subprocess.Popen(
                command, stdin=pipe, stdout=nothing, stderr=nothing, cwd=ROOT, start_new_session=True
            )

    def take(self, run: Run) -> subprocess.Popen[bytes] | None:
        """Hands the run to the waiting process and returns that; None if there is none."""
        taken, self._waiting = self._waiting, None
        if taken is None or _ended(taken) or taken.stdin is None:
            return None
        try:
            with taken.stdin as stdin:
                stdin.write(f"{run.id} {run.attempt}\n".encode())
        except BrokenPipeError:  # it has just ended
            return None
        return taken


def _ended(waiting: subprocess.Popen[bytes]) -> bool:
    if waiting.poll() is None:
        return False
    if waiting.stdin:
        waiting.stdin.close()
    return True


def assignment(runs_dir: Path) -> list[str]:
    """In the waiting process: reads run and attempt from standard input and redirects output to the run's log; [] for none."""
    words = sys.stdin.readline().split()
    if words:
        log = os.open(runs_dir / words[0] / SUPERVISOR_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for new, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(new, number)
    return words

"""The training process of a run: the launcher and its ranks, all of them descendants of the supervisor.

A watchdog makes sure that it stops when asked, and that no rank waits for one that has died.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from training.run_folder.paths import LOG_FILE, PAUSE_VARIABLE, RUN_VARIABLE, SUPERVISOR_VARIABLE, VLLM_VARIABLE
from training.tokens import store
from worker.machine import processes
from worker.machine.sizes import Size, entries, size_of
from worker.settings import PREFIX, Settings
from worker.store.tables import Request
from worker.supervision.launcher import Launch
from worker.supervision.lease import steady
from worker.supervision.report_reader import AttemptProgress

# In these phases a rank may finish before the others; in all other phases a missing rank has died.
_APART = {"saving", "answering"}
# torchrun prints this when a rank has died, and then waits for the others.
_TORCHRUN_ENDS = re.compile(r"Sending process \d+ closing signal")
_LAUNCHER_SECONDS = 5.0
_STEPS = 2  # a request may come at the beginning of a step, and the next one may be longer


def environment(launch: Launch, run_id: str, settings: Settings, pause_at: int | None = None) -> dict[str, str]:
    """The environment of the training process that this supervisor starts: without Lathe's own settings and secrets.

    `pause_at` is the step at which the run pauses.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    token = {"HF_TOKEN": settings.hub_token.get_secret_value()} if settings.hub_token else {}
    ours = {
        # DeepSpeed calls ninja by name to build its operators; use the one installed beside this Python.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML numbers GPUs
        RUN_VARIABLE: run_id,
        SUPERVISOR_VARIABLE: str(os.getpid()),
        store.VARIABLE: str(settings.tokens_dir),  # shared with the pages
    }
    pause = {PAUSE_VARIABLE: str(pause_at)} if pause_at else {}
    vllm = {VLLM_VARIABLE: settings.vllm_command} if settings.vllm_command else {}
    return inherited | token | ours | pause | vllm | launch.env


def end_left_behind(run_id: str) -> None:
    """Kills processes of an earlier attempt on this machine that its supervisor left behind."""
    processes.end(processes.marked(RUN_VARIABLE, run_id))


class TrainingProcess:
    """A training process with closed standard input whose output goes to the run's log.

    It is killed when this process ends.
    """

    lost = ""
    """Which machine of the run was lost, as a sentence; empty if none was."""
    lost_host = ""
    """Its name."""

    def __init__(
        self,
        argv: list[str],
        run_dir: Path,
        env: Mapping[str, str],
        *,
        output: str = LOG_FILE,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self._launcher = processes.start_child(argv, output=run_dir / output, cwd=run_dir, env=env, stdin=stdin)
        self._signalled: set[int] = set()

    def exit_code(self) -> int | None:
        """The launcher's exit code (negative: the signal that ended it), or None while it runs."""
        return self._launcher.poll()

    def request_stop(self, ranks: Iterable[int]) -> None:
        """Sends SIGTERM once to each process in `ranks`: they save after the current step and exit."""
        new = set(ranks) - self._signalled
        self._signalled |= new
        self._signal(new, signal.SIGTERM)

    def kill_ranks(self, ranks: Iterable[int]) -> None:
        """Sends SIGKILL to the processes in `ranks`; the launcher notices."""
        self._signal(set(ranks), signal.SIGKILL)

    def _signal(self, pids: set[int], number: int) -> None:
        if pids:
            # Only descendants of this process: a pid read from a file may belong to another program.
            processes.send([child for child in processes.descendants() if child.pid in pids], number)

    def any_gone(self, ranks: Iterable[int]) -> bool:
        """True if one of the processes in `ranks` has ended."""
        return any(not psutil.pid_exists(pid) for pid in ranks)

    def kill(self) -> None:
        """Kills the launcher and all ranks."""
        processes.kill_descendants()

    def wait(self, seconds: float) -> None:
        """Sleeps up to `seconds`, or until the launcher ends."""
        processes.wait_for_end(self._launcher, seconds)
        processes.reap_orphans(keep=self._launcher.pid)


@dataclass(frozen=True)
class Graces:
    """Seconds until the training process is killed.

    `leaving`: after the request to stop, or twice its longest step if that is more; `saving`: without a byte more in its folder,
    while it saves; `rank_died`: after a rank died; `exiting`: after it reported its end, since some libraries hang at exit.
    """

    leaving: float = 8.0
    saving: float = 55.0
    rank_died: float = 15.0
    exiting: float = 5.0


class Watchdog:
    """Watches one training process, which saves in `folder`; call `check` regularly."""

    def __init__(self, trainer: TrainingProcess, seen: AttemptProgress, graces: Graces, folder: Path) -> None:
        self.forced = False
        self._folder, self._saved = folder, Size()
        self._trainer, self._seen, self._graces = trainer, seen, graces
        self._asked_at: float | None = None
        self._progress_at = 0.0
        self._died_at: float | None = None
        self._done_at: float | None = None

    def check(self, asked: Request | None) -> None:
        """Handles the request, or kills ranks that wait for a dead one."""
        if self._seen.finished:
            self._end_done()
        elif asked:
            self._stop()
        else:
            self._end_surviving_ranks()

    def _stop(self) -> None:
        now = steady()
        self._asked_at = self._asked_at or now
        self._trainer.request_stop(self._seen.ranks.values())
        grace = max(self._graces.leaving, _STEPS * self._seen.step_seconds)
        if self._seen.phase == "saving":
            saved = sum((size_of(path) for path in entries(self._folder) if path.is_dir()), Size())
            if saved != self._saved or not self._progress_at:
                self._saved, self._progress_at = saved, now
        if self._progress_at:  # what follows a save, such as hashing it, has its time too
            grace = max(grace, self._graces.saving)
        # Before any rank has started there is nothing to signal or save.
        if not self._seen.ranks or now - max(self._asked_at, self._progress_at) > grace:
            self._force()

    def _end_done(self) -> None:
        now = steady()
        self._done_at = self._done_at or now
        if now - self._done_at > self._graces.exiting:
            self._force()

    def _end_surviving_ranks(self) -> None:
        now = steady()
        if not self._one_died():
            self._died_at = None
            return
        self._died_at = self._died_at or now
        waited = now - self._died_at - self._graces.rank_died
        if waited > _LAUNCHER_SECONDS:
            self._force()
        elif waited > 0:
            # The launcher stays alive to log why the rank died.
            self.forced = True
            self._trainer.kill_ranks(self._seen.ranks.values())

    def _one_died(self) -> bool:
        if self._seen.failures or any(_TORCHRUN_ENDS.search(line) for line in self._seen.log):
            return True
        return self._seen.phase not in _APART and self._trainer.any_gone(self._seen.ranks.values())

    def _force(self) -> None:
        self.forced = True
        self._trainer.kill()

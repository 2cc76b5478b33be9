"""The training process of a run: the launcher and its ranks, all of them descendants of the supervisor.

A watchdog makes sure that it stops when asked, and that no rank waits for one that has died.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from training.run_folder.paths import LOG_FILE, PAUSE_VARIABLE, RUN_VARIABLE, SUPERVISOR_VARIABLE, VLLM_VARIABLE
from training.tokens import store
from worker.diagnosis import kills
from worker.diagnosis.kills import Killed
from worker.machine import processes
from worker.machine.sizes import Size, entries, size_of
from worker.settings import PREFIX, Settings
from worker.store.tables import Request
from worker.supervision.launcher import Launch
from worker.supervision.lease import steady
from worker.supervision.report_reader import AttemptProgress

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
    """A training process with closed standard input whose output goes to the run's log, with a line for each signal from here.

    It is killed when this process ends.
    """

    killed: Killed | None = None
    """The first kill from here, with all processes that were killed; what is left after the training has ended does not count."""
    _several_machines = False

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
        self._log = run_dir / output
        self._launcher = processes.start_child(argv, output=self._log, cwd=run_dir, env=env, stdin=stdin)
        self._signalled: set[int] = set()

    def exit_code(self) -> int | None:
        """The launcher's exit code (negative: the signal that ended it), or None while it runs."""
        return self._launcher.poll()

    def request_stop(self, ranks: Iterable[int], why: str) -> None:
        """Sends SIGTERM once to each process in `ranks`: they save after the current step and exit."""
        new = set(ranks) - self._signalled
        self._signalled |= new
        self._signal(new, signal.SIGTERM, why)

    def kill_ranks(self, ranks: Iterable[int], why: str) -> None:
        """Sends SIGKILL to the processes in `ranks`; the launcher notices."""
        self._signal(set(ranks), signal.SIGKILL, why)

    def _signal(self, pids: set[int], number: signal.Signals, why: str) -> None:
        # Only descendants of this process: a pid read from a file may belong to another program.
        chosen = [child for child in processes.descendants() if child.pid in pids] if pids else []
        if chosen:
            found = frozenset(child.pid for child in chosen)
            self._write(number, found, why)
            if number is signal.SIGKILL:
                self._remember(found, why)
            processes.send(chosen, number)

    def _remember(self, pids: frozenset[int], why: str) -> None:
        """Keeps that Lathe killed these processes, so that nothing else is blamed for it."""
        known = None if self._several_machines else pids
        self.killed = self.killed.and_also(known) if self.killed else Killed(why, known)

    def _write(self, number: signal.Signals, pids: frozenset[int] | None, why: str) -> None:
        """Writes into the log which processes get a signal (None: all ranks), and why."""
        with suppress(OSError), self._log.open("ab", buffering=0) as log:  # the disk may be full
            log.write(f"{kills.sent(number, pids, why)}\n".encode())

    def gone(self, ranks: Mapping[int, int]) -> list[int]:
        """Those of the ranks (with their process IDs) whose process has ended."""
        return [rank for rank, pid in ranks.items() if not psutil.pid_exists(pid)]

    def kill(self, why: str) -> None:
        """Kills the launcher and all ranks."""
        self._remember(frozenset(child.pid for child in processes.descendants()), why)
        self.clear(why)

    def clear(self, why: str) -> None:
        """Kills what is left of a training that has ended by itself."""
        if left := processes.descendants():
            self._write(signal.SIGKILL, frozenset(child.pid for child in left), why)
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
            self._stop(f"the request to {asked.value} it.")
        else:
            self._end_surviving_ranks()

    def _stop(self, why: str) -> None:
        now = steady()
        self._asked_at = self._asked_at or now
        self._trainer.request_stop(self._seen.ranks.values(), why)
        grace = max(self._graces.leaving, _STEPS * self._seen.step_seconds)
        if self._seen.phase == "saving":
            saved = sum((size_of(path) for path in entries(self._folder) if path.is_dir()), Size())
            if saved != self._saved or not self._progress_at:
                self._saved, self._progress_at = saved, now
        if self._progress_at:  # what follows a save, such as hashing it, has its time too
            grace = max(grace, self._graces.saving)
        # Before any rank has started there is nothing to signal or save.
        if not self._seen.ranks or now - max(self._asked_at, self._progress_at) > grace:
            self._trainer.kill(f"it did not end in time after {why}")

    def _end_done(self) -> None:
        now = steady()
        self._done_at = self._done_at or now
        if now - self._done_at > self._graces.exiting:
            self._trainer.kill("its processes did not exit after it had reported its end.")

    def _end_surviving_ranks(self) -> None:
        now = steady()
        why = self._who_died()
        if not why:
            self._died_at = None
            return
        self._died_at = self._died_at or now
        waited = now - self._died_at - self._graces.rank_died
        if waited > _LAUNCHER_SECONDS:
            self._trainer.kill(why)
        elif waited > 0:
            # The launcher stays alive to log why the rank died.
            self._trainer.kill_ranks(self._seen.ranks.values(), why)

    def _who_died(self) -> str:
        """Which rank the others would wait for in vain, as a sentence; empty if none. A rank that said that it leaves is none."""
        waited = f"and the others did not exit within {self._graces.rank_died:g} s."
        if self._seen.failures:
            return f"Rank {self._seen.failures[0].rank} had reported an error, {waited}"
        if any(_TORCHRUN_ENDS.search(line) for line in self._seen.log):
            return f"A rank had failed, {waited}"
        gone = ", ".join(map(str, self._trainer.gone(self._seen.ranks)))
        return f"Rank {gone} had ended in the phase {self._seen.phase} without a report, {waited}" if gone else ""

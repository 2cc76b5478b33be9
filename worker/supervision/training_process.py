"""The training process of a run: the launcher and its ranks, all of them descendants of the supervisor."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from training.run_folder.paths import LOG_FILE, PAUSE_VARIABLE, RUN_VARIABLE, SUPERVISOR_VARIABLE, VLLM_VARIABLE
from training.tokens import store
from worker.machine import processes
from worker.settings import PREFIX, Settings
from worker.supervision.launcher import Launch


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

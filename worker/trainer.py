"""The training process of a run: the launcher and its ranks, all of them descendants of the supervisor."""

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from training import token_store
from worker import process
from worker.launcher import Launch
from worker.reports import LOG_FILE
from worker.settings import PREFIX, Settings

# In the environment of every process of a run: by it they are found even where their parents are gone.
RUN_MARK = "LATHE_RUN"


def environment(launch: Launch, run_id: str, settings: Settings) -> dict[str, str]:
    """What the training process finds in its environment: the worker's, without Lathe's own settings and secrets."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    token = {"HF_TOKEN": settings.hub_token.get_secret_value()} if settings.hub_token else {}
    ours = {
        # DeepSpeed calls ninja by name to build its operators: the one that is installed beside this Python.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML numbers GPUs
        RUN_MARK: run_id,
        token_store.VARIABLE: str(settings.tokens_dir),  # made by the pages, or left for them
    }
    return inherited | token | ours | launch.env


def end_left_behind(run_id: str) -> None:
    """Ends what is left of an earlier attempt on this machine, where its supervisor could not."""
    process.end(process.marked(RUN_MARK, run_id))


class Trainer:
    """A training process, started with nothing on its input and everything it prints in the run's log.

    It is gone as soon as this process is, however that ends.
    """

    def __init__(self, argv: list[str], run_dir: Path, env: Mapping[str, str]) -> None:
        self._launcher = process.start_child(argv, output=run_dir / LOG_FILE, cwd=run_dir, env=env)
        self._told: set[int] = set()

    def exit_code(self) -> int | None:
        """The launcher's exit code (negative: the signal that ended it), or None while it runs."""
        return self._launcher.poll()

    def ask_to_leave(self, ranks: Iterable[int]) -> None:
        """SIGTERM, once, to each of the processes `ranks`: they save at their next step and leave."""
        new = set(ranks) - self._told
        self._told |= new
        self._signal(new, signal.SIGTERM)

    def kill_ranks(self, ranks: Iterable[int]) -> None:
        """SIGKILL to the processes `ranks`; the launcher sees them end."""
        self._signal(set(ranks), signal.SIGKILL)

    def _signal(self, pids: set[int], number: int) -> None:
        if pids:
            # Only what descends from us: a number read from a file may be anybody's.
            process.send([found for found in process.descendants() if found.pid in pids], number)

    def any_gone(self, ranks: Iterable[int]) -> bool:
        """Whether one of the processes `ranks` has ended."""
        return any(not psutil.pid_exists(pid) for pid in ranks)

    def kill(self) -> None:
        """Ends all of it, at once."""
        process.kill_descendants()

    def wait(self, seconds: float) -> None:
        """Sleeps up to `seconds`, less where the launcher ends."""
        process.wait_for_end(self._launcher, seconds)
        process.reap_orphans(keep=self._launcher.pid)

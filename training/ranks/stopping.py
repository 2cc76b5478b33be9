"""Stops training on SIGTERM, and ends the process with its parent."""

import ctypes
import os
import signal
import sys
from types import FrameType
from typing import Any

import psutil

from training.run_folder.paths import PAUSE_VARIABLE, SUPERVISOR_VARIABLE

_PR_SET_PDEATHSIG = 1


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel to end this process by a signal when its parent ends (Linux), so that no rank continues unsupervised."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent or _supervisor_has_ended():  # before the call
        os.kill(os.getpid(), by)


def _supervisor_has_ended() -> bool:
    """True if a supervisor started this run and has ended: its launcher was killed with it."""
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor is None:
        return False
    try:
        return psutil.Process(int(supervisor)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class StopSignal:
    """Handles SIGTERM: during training the run saves a checkpoint after the current step and exits; before, it exits at once.

    Also knows the step at which the run pauses for the decision of its sweep, and whether training has `diverged`.
    """

    def __init__(self) -> None:
        self.requested = self.diverged = False
        self._training = False
        self._pause_at = int(os.environ.get(PAUSE_VARIABLE, "0"))

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)

    def run_ends(self) -> None:
        """From now on a stop changes nothing, and does not interrupt what the run writes of its end: the launcher stops all ranks
        as soon as one has failed."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def check(self) -> None:
        """Ends a run whose stop was lost: Python ignores what a signal handler raises inside a finalizer or a callback from C.
        Raises StopRequested if a stop was requested."""
        if self.requested:
            from training.errors import StopRequested

            raise StopRequested

    @property
    def ends_the_start(self) -> bool:
        """True if a stop was requested before training began. An import that it interrupts may raise another error."""
        return self.requested and not self._training

    def training_begins(self) -> None:
        """From now on a stop waits for the end of the step. Creates a process group for several ranks to agree on it."""
        import torch.distributed as dist

        self._training = True
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() and dist.get_world_size() > 1 else None

    def training_ends(self) -> None:
        """From now on a stop ends the program at once: what it does can be repeated. Raises StopRequested after one."""
        self._training = False
        self.check()

    @property
    def group(self) -> Any:
        """The process group of all ranks on CPU, from `training_begins` on; None with one rank."""
        return self._group

    def agreed(self) -> bool:
        """True if any rank got SIGTERM; sets `diverged` if any rank has. All ranks must call it at the same step."""
        if self._group is None:
            return self.requested
        import torch
        import torch.distributed as dist

        flags = torch.tensor([self.requested, self.diverged], dtype=torch.int64)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        self.diverged = bool(flags[1])
        return bool(flags[0])

    def pauses_at(self, step: int) -> bool:
        """True from the step on at which the run pauses; the same on all ranks."""
        return 0 < self._pause_at <= step

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if self.ends_the_start:
            self.check()

"""Leaving when asked, and not outliving the process that started this one."""

import ctypes
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks the kernel to end this process when its parent ends (Linux): no rank trains on with nobody to hear it."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request was made
        os.kill(os.getpid(), signal.SIGKILL)


class StopSignal:
    """SIGTERM means: save at the next step and leave. Before training has begun there is nothing to save: leave at once."""

    def __init__(self) -> None:
        self.requested = False
        self._training = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)

    def training_begins(self) -> None:
        """From here on a stop waits for the next step. Several ranks get a channel of their own to agree on it."""
        import torch.distributed as dist

        self._training = True
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() and dist.get_world_size() > 1 else None

    def agreed(self) -> bool:
        """Whether any rank was asked to stop; all ranks must ask at the same step, and all get the same answer."""
        if self._group is None:
            return self.requested
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(self.requested)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if not self._training:
            from training.failure import StopRequested

            raise StopRequested

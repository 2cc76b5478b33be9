"""Waits for ranks as torchrun does, for launchers that start ranks without torch."""

import signal
import subprocess
import time
from collections.abc import Sequence

_LOOK_SECONDS = 0.02


def wait_for_ranks(ranks: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Waits until all ranks have ended and returns the exit code, 0 or 1. When one fails, ends the others with SIGTERM.

    Prints what torchrun prints in that case; the supervisor reads it.
    """
    while all(rank.poll() in (None, 0) for rank in ranks) and any(rank.poll() is None for rank in ranks):
        time.sleep(_LOOK_SECONDS)
    failed = [rank for rank in ranks if rank.poll()]
    for rank in ranks:
        if rank.poll() is None:
            print(f"Sending process {rank.pid} closing signal SIGTERM", flush=True)
            rank.terminate()
    for rank in ranks:
        rank.wait()
    for rank in failed:
        if rank.returncode < 0:
            name = signal.Signals(-rank.returncode).name
            print(f"Signal {-rank.returncode} ({name}) received by PID {rank.pid}", flush=True)
    return 1 if failed else 0

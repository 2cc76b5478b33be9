"""`python -m training.vllm.child COMMAND ...`: runs the command, and ends it with all its processes on SIGTERM, which the kernel
also sends when the process that started this one ends. vLLM's processes hold the GPU, and survive its server if that is killed.

The command may belong to another virtual environment, so it does not see where this one has its packages. It gets none of Lathe's
variables but the mark of the run, and none of torchrun's: with TORCHELASTIC_USE_AGENT_STORE torch would wait for a store that no
agent has opened.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from training.ranks.stopping import die_with_parent
from training.run_folder.paths import RUN_VARIABLE

_OURS = re.compile(
    r"PYTHON(PATH|SAFEPATH|HOME)|VIRTUAL_ENV|LATHE_.*|TORCHELASTIC_.*|MASTER_(ADDR|PORT)|([A-Z]+_)?(RANK|WORLD_SIZE)"
)
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # nothing is sent about its use
_END_SECONDS = 5.0


def environment() -> dict[str, str]:
    """The command's environment."""
    kept = {name: value for name, value in os.environ.items() if name == RUN_VARIABLE or not _OURS.fullmatch(name)}
    return kept | _QUIET


def main(argv: Sequence[str]) -> int:
    """Returns the command's exit status; negative: the signal that ended it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
    die_with_parent(signal.SIGTERM)
    process = subprocess.Popen(argv, env=environment(), start_new_session=True, preexec_fn=_unblocked)  # noqa: PLW1509 no threads
    while process.poll() is None:
        if signal.sigwait([signal.SIGTERM, signal.SIGCHLD]) == signal.SIGTERM:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its own processes
    return process.wait()


def _unblocked() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    die_with_parent()


def leave(code: int) -> NoReturn:
    """Ends this process as the command ended."""
    if code < 0:
        with contextlib.suppress(OSError):  # not of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))

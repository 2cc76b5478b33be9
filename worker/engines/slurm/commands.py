"""Calls Slurm's client commands, each with a time limit."""

import os
import subprocess
from collections.abc import Sequence

SECONDS = 20.0
_NOT_FOR_JOBS = ("LATHE_TOKEN", "LATHE_SMTP_URL", "LATHE_JUDGE_KEY", "LATHE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Secrets that no job needs (Slurm stores the environment of a job), and the devices of this machine."""


class SlurmError(RuntimeError):
    """A command of Slurm failed; the message is its error output. `unreachable`: it may succeed later."""

    def __init__(self, message: str, *, unreachable: bool) -> None:
        super().__init__(message)
        self.unreachable = unreachable


# Also limits on the number of submitted jobs (AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit).
_LATER = (
    "unable to contact",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "try again",
)


def call(argv: Sequence[str], *, text: str = "", seconds: float = SECONDS) -> str:
    """What the command prints; `text` is its standard input.

    Raises:
        SlurmError: it failed, is not installed, or took longer than `seconds`.
    """
    try:
        done = subprocess.run(
            list(argv),
            check=False,
            input=text,
            env=_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except FileNotFoundError:
        message = f"{argv[0]} is not installed. Install Slurm's client commands (Debian: slurm-client)."
        raise SlurmError(message, unreachable=False) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} did not answer within {seconds:.0f} s.", unreachable=True) from None
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"{argv[0]} ended with exit code {done.returncode}."
        raise SlurmError(message, unreachable=any(sign in message.lower() for sign in _LATER))
    return done.stdout


def _environment() -> dict[str, str]:
    """This process's environment in English, without what must not reach a job: sbatch passes it on."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_JOBS}
    return kept | {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}

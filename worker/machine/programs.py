"""Programs that run in a process of their own, with limits on memory, CPU time and the files they write."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from worker.settings import ROOT

# Every program that is started by the name of its module, besides the training itself.
INSPECTION = "training.data.inspection"
JOIN_FILES = "training.data.files.readers"
BROWSE = "training.data.files.browse"
MAKE_STORE = "training.tokens.make_store"
TEMPLATE_CHECK = "training.template_check.check"
LAYERS = "training.models.layers"
TARGETS = "training.models.target_modules"
SIMULATE = "training.simulation.simulate"
MERGING = "training.results.merging"
GATHERING = "training.results.gathering"
GGUF = "training.results.gguf"
VERIFY = "training.results.parity.verify"
GGUF_ADAPTER = "training.results.gguf.adapter"
EVALUATE = "training.results.evaluate"
OWN_METRIC = "training.scoring.own_metric"
OVERLAP = "training.scoring.overlap"
SERVING = "training.serving"
DEVICE_CHECK = "training.ranks.device_check"
VLLM = "training.vllm.child"

HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE")
HUB_WITH_TOKEN = (*HUB, "HF_TOKEN")
_ALWAYS = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")


@dataclass(frozen=True)
class Limits:
    """`seconds` of CPU time; `file_bytes`: the longest file that may be written, None if none may be.

    `memory_bytes` is the address space, or, with `file_bytes`, what the program allocates.
    """

    memory_bytes: int
    seconds: int
    file_bytes: int | None = None

    @property
    def arguments(self) -> list[str]:
        """As `worker.machine.limits` reads them."""
        both = [str(self.memory_bytes), str(self.seconds)]
        return both if self.file_bytes is None else ["--writing", *both, str(self.file_bytes)]


@dataclass(frozen=True)
class Result:
    """How a program ended: its exit code (negative: the signal that ended it) and what it printed.

    `timed_out`: it was ended though it had not used its CPU time, because it slept or the machine is busy.
    """

    code: int
    output: bytes = b""
    errors: bytes = b""
    timed_out: bool = False

    @property
    def too_slow(self) -> bool:
        """True if a time limit ended the program."""
        return self.code == -signal.SIGXCPU

    @property
    def last_line(self) -> str:
        """The last line on stderr, which names the exception."""
        return (self.errors.decode(errors="replace").strip().splitlines() or [""])[-1]

    @property
    def out_of_memory(self) -> bool:
        """True if the program was killed, or its last line names a failed allocation."""
        return self.code == -signal.SIGKILL or any(sign in self.last_line for sign in ("MemoryError", "bad_alloc"))


class ProgramError(RuntimeError):
    """A program that gave no answer; the message is the reason, without a full stop."""


def run_limited(
    module: str, arguments: Sequence[str], limits: Limits, *, text: str = "", variables: Sequence[str] = ()
) -> Result:
    """Runs a program to its end, or until it exceeds a limit or takes three times its CPU time.

    `text` is its standard input; `variables` names what it sees of the environment besides the basics.
    """
    try:
        with running_limited(module, arguments, limits, variables=variables, stdin=subprocess.PIPE) as process:
            output, errors = process.communicate(text.encode(), timeout=3 * limits.seconds)
    except subprocess.TimeoutExpired:
        return Result(-signal.SIGXCPU, timed_out=True)
    return Result(process.returncode, output, errors)


def run_for_json(
    module: str, arguments: Sequence[str], limits: Limits, *, text: str = "", variables: Sequence[str] = ()
) -> Any:
    """Runs a program as `run_limited` does and returns the JSON value that it prints last.

    Raises:
        ProgramError: it exceeded a limit, failed, or printed no JSON.
    """
    result = run_limited(module, arguments, limits, text=text, variables=variables)
    if result.too_slow:
        raise ProgramError(f"it took more than {limits.seconds} s")
    if result.code:
        raise ProgramError(result.last_line or f"exit code {result.code}")
    try:
        return json.loads(result.output.splitlines()[-1])
    except (ValueError, IndexError):
        raise ProgramError(result.last_line or "it printed no answer") from None


def start_limited(
    module: str,
    arguments: Sequence[str],
    limits: Limits,
    *,
    variables: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.PIPE,
    stderr: int | IO[Any] = subprocess.PIPE,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts a program in the installation's folder: paths in `arguments` must be absolute.

    `env` is added to its environment; `options` go to `subprocess.Popen`.
    """
    command = [sys.executable, "-m", "worker.machine.limits", *limits.arguments, module, *arguments]
    variables_seen = environment(*variables) | dict(env or {})
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=variables_seen, cwd=ROOT, **options)


@contextmanager
def running_limited(
    module: str, arguments: Sequence[str], limits: Limits, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program as `start_limited` does, and waits for it. Kills it if the `with` block raises."""
    with start_limited(module, arguments, limits, **options) as process:
        try:
            yield process
        except BaseException:  # also Ctrl-C
            process.kill()
            raise


def environment(*variables: str) -> dict[str, str]:
    """What Python needs of the environment, and `variables`: no token and no address unless they are named."""
    inherited = {name: os.environ[name] for name in (*_ALWAYS, *variables) if name in os.environ}
    python = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return inherited | python | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}

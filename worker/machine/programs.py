"""Programs that run in a process of their own, with limits on memory, CPU time and the files they write."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from training.errors import Problem
from training.limited import Limits, start_limited
from worker.machine.processes import Activity

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
OVERLAP = "training.scoring.overlap"
SAMPLE_ROWS = "training.scoring.sample_rows"
REWARD_SCORES = "training.results.reward_scores"
DIAGNOSIS = "worker.diagnosis.reading"
VOCABULARIES = "training.model_info.vocabulary"
TRANSLATING = "training.foreign.translating"
SERVING = "training.serving"
DEVICE_CHECK = "training.ranks.device_check"
VLLM = "training.vllm.child"
JAIL = "training.jail"

HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE")
HUB_WITH_TOKEN = (*HUB, "HF_TOKEN")


_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Result:
    """How a program ended: its exit code (negative: the signal that ended it) and what it printed."""

    code: int
    output: bytes = b""
    errors: bytes = b""

    @property
    def too_slow(self) -> bool:
        """True if a time limit ended the program."""
        return self.code == -signal.SIGXCPU

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended it: from outside, or because the machine had no memory left."""
        return self.code == -signal.SIGKILL

    @property
    def last_line(self) -> str:
        """The last line on stderr, which names the exception."""
        return (self.errors.decode(errors="replace").strip().splitlines() or [""])[-1]

    @property
    def out_of_memory(self) -> bool:
        """True if the program was killed, or its last line names a failed allocation."""
        return self.was_killed or any(sign in self.last_line for sign in ("MemoryError", "bad_alloc"))


class ProgramError(RuntimeError):
    """A program that gave no answer; the message is the reason, without a full stop."""


class ProgramRefused(ProgramError):  # noqa: N818
    """A program that named what is wrong itself."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class ProgramKilled(ProgramError):  # noqa: N818
    """A program that was killed by SIGKILL: from outside, or because the machine had no memory left."""

    def __init__(self) -> None:
        super().__init__("its process was killed by SIGKILL")


def run_limited(
    module: str, arguments: Sequence[str], limits: Limits, *, text: str = "", variables: Sequence[str] = ()
) -> Result:
    """Runs a program to its end, or until it exceeds a limit or has done nothing for as long as its CPU time.

    `text` is its standard input; `variables` names what it sees of the environment besides the basics.
    """
    with (
        running_limited(module, arguments, limits, variables=variables, stdin=subprocess.PIPE) as process,
        _ended_when_quiet(process, limits.seconds) as was_quiet,
    ):
        output, errors = process.communicate(text.encode())
    return Result(-signal.SIGXCPU if was_quiet.is_set() else process.returncode, output, errors)


@contextmanager
def _ended_when_quiet(process: subprocess.Popen[bytes], seconds: float) -> Iterator[Event]:
    """Kills the process, and sets the event, if it does nothing for `seconds` within the `with` block.

    A thread looks: `communicate` with a timeout does not send the rest of the input when it is called again.
    """
    activity, left, was_quiet = Activity(process.pid), Event(), Event()

    def look() -> None:
        while not left.wait(_LOOK_SECONDS):
            if activity.quiet_seconds() > seconds:
                was_quiet.set()
                process.kill()
                return

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield was_quiet
    finally:
        left.set()
        thread.join()


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

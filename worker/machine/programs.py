"""Programs that run in a process of their own, with limits on memory, CPU time and the files they write."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from training.errors import Problem
from training.limited import Limits, start_limited
from worker.machine.processes import Activity
from worker.machine.turns import turns

HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT")
_GIB = 2**30
_OF_A_RUN = "it computes on the device of a run's owner from files that Lathe wrote or checked, as the training itself"
_RESULT = "it writes a result of gigabytes from the weights of a run, which are safetensors"


@dataclass(frozen=True)
class Program:
    """A program that is started by the name of its module, what it may use, and what it sees of the environment besides the basics.

    The jail (training/jail) holds it, unless `unconfined` says why not: it reads what the caller names, and writes nothing. The
    limits are those of `Limits`; each `bytes_per_second` of its input is one more second. Without `memory_bytes` it has no limits.
    """

    module: str
    memory_bytes: int = 0
    seconds: int = 0
    bytes_per_second: int = 0
    allocated: bool = False
    imports_first: bool = False
    variables: tuple[str, ...] = ()
    unconfined: str = ""

    def limits(self, *reads: Path, length: int = 0, file_bytes: int = 0) -> Limits:
        """The limits for an input of `length` bytes, if it may read these files and folders."""
        memory = self.memory_bytes + (0 if self.allocated else length)
        seconds = self.seconds + (length // self.bytes_per_second if self.bytes_per_second else 0)
        confined = None if self.unconfined else reads
        return Limits(memory, seconds, file_bytes, self.allocated, confined, self.imports_first)


def _reader(module: str, memory_gib: int, seconds: int, **options: Any) -> Program:
    return Program(module, memory_gib * _GIB, seconds, **options)


def _of_torch(module: str, memory_gib: int, seconds: int) -> Program:
    """A program that reads a model. Importing the libraries takes most of the time."""
    return _reader(module, memory_gib, seconds, allocated=True, imports_first=True, variables=HUB)


INSPECTION = _reader("training.data.inspection", 2, 10, bytes_per_second=2 * 2**20)
JOIN_FILES = _reader("training.data.files.readers", 2, 10, bytes_per_second=2 * 2**20)
BROWSE = _reader("training.data.files.browse", 2, 10, bytes_per_second=2 * 2**20)
SAMPLE_ROWS = _reader("training.rewards.sample_rows", 2, 10, bytes_per_second=2 * 2**20)
OVERLAP = _reader("training.scoring.overlap", 4, 600)
TEMPLATE_CHECK = _reader(
    "training.template_check.check", 3, 25, variables=HUB
)  # rendering the rows takes about a second
TEMPLATE_SYNTAX = _reader("training.chat.template", 1, 10)
TEMPLATE_TURNS = _reader("training.model_info.chat_template", 2, 10)
YAML = _reader("training.config.yaml_text", 1, 10)
VOCABULARIES = _reader("training.model_info.vocabulary", 4, 30)
TRANSLATING = _reader("training.foreign.translating", 1, 10)
DIAGNOSIS = _reader("worker.diagnosis.reading", 2, 60)
LAYERS = _of_torch("training.models.layers", 8, 120)
TARGETS = _of_torch("training.models.target_modules", 8, 120)
SIMULATE = _of_torch("training.simulation.simulate", 12, 300)  # a model of 7B takes about 60 s
REWARD_SCORES = _of_torch("training.results.reward_scores", 16, 600)
MAKE_STORE = Program(
    "training.tokens.make_store", 4 * _GIB, 300, bytes_per_second=20_000, allocated=True, variables=HUB,
    unconfined="it confines itself once the tokenizer is here, and then writes only into the folder of the tokens",
)  # fmt: skip
MAKE_GROUPS = Program(
    "training.tokens.make_groups", 4 * _GIB, 300, bytes_per_second=1_000_000, allocated=True,
    unconfined="it writes the folder of the tokens, and reads only tokens that Lathe wrote",
)  # fmt: skip
HUB_FILES = Program(
    "training.model_info.hub_files", 2 * _GIB, 60, variables=(*HUB, "HF_TOKEN"),
    unconfined="it stores what the hub sends, and reads none of it",
)  # fmt: skip
JAIL = Program("training.jail", 2 * _GIB, 20, unconfined="it tries what the jail refuses")
REWARDS = Program("training.rewards.reward_program", unconfined="it confines itself once the code of rewards is there")
DEVICE_CHECK = Program("training.ranks.device_check", unconfined="it reads nothing of a caller")
VLLM = Program(
    "training.vllm.child", unconfined="it starts the program of LATHE_VLLM_COMMAND, which the server's user has set"
)
MERGING = Program("training.results.merging", unconfined=_RESULT)
GATHERING = Program("training.results.gathering", unconfined=_RESULT)
GGUF = Program("training.results.gguf", unconfined=_RESULT)
GGUF_ADAPTER = Program("training.results.gguf.adapter", unconfined=_RESULT)
VERIFY = Program("training.results.parity.verify", unconfined=_RESULT)
EVALUATE = Program("training.results.evaluate", unconfined=_OF_A_RUN)
SERVING = Program("training.serving", unconfined=_OF_A_RUN)
LAUNCH = Program("training.ranks.launch", unconfined=_OF_A_RUN)
TRAIN = Program("training.train", unconfined=_OF_A_RUN)

_OWN = tuple(
    Program(f"worker.{name}", unconfined="it starts and supervises other programs, and keeps the database")
    for name in (
        "builds", "engines.job_side.node", "engines.job_side.supervisor", "engines.local.gang", "engines.local.node",
        "evaluations.supervisor", "store.database", "supervision.supervisor",
    )
)  # fmt: skip
PROGRAMS = _OWN + tuple(value for value in vars().copy().values() if isinstance(value, Program))


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


def run_limited(program: Program, arguments: Sequence[str], limits: Limits | None = None, *, text: str = "") -> Result:
    """Runs a program to its end, or until it exceeds a limit or has done nothing for as long as its CPU time.

    `limits` are the program's for what it reads (`Program.limits`); without them it reads no file. `text` is its standard input.
    """
    limits = limits or program.limits()
    with (
        running_limited(program, arguments, limits, stdin=subprocess.PIPE) as process,
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


def run_for_json(program: Program, arguments: Sequence[str], limits: Limits | None = None, *, text: str = "") -> Any:
    """Runs a program as `run_limited` does and returns the JSON value that it prints last.

    Raises:
        ProgramError: it exceeded a limit, failed, or printed no JSON; ProgramKilled if it was killed.
    """
    limits = limits or program.limits()
    result = run_limited(program, arguments, limits, text=text)
    if result.too_slow:
        raise ProgramError(f"it took more than {limits.seconds} s")
    if result.was_killed:
        raise ProgramKilled
    if result.code:
        raise ProgramError(result.last_line or f"exit code {result.code}")
    try:
        return json.loads(result.output.splitlines()[-1])
    except (ValueError, IndexError):
        raise ProgramError(result.last_line or "it printed no answer") from None


def start(program: Program, arguments: Sequence[str], limits: Limits, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a program as `start_limited` does, in the jail if it is held by one.

    Raises:
        ValueError: the limits do not say what a confined program may read.
    """
    if limits.reads is None and not program.unconfined:
        raise ValueError(f"{program.module} is confined: take its limits from Program.limits")
    return start_limited(program.module, arguments, limits, variables=program.variables, **options)


@contextmanager
def running_limited(
    program: Program, arguments: Sequence[str], limits: Limits, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program as `start` does when it is its turn, and waits for it. Kills it if the `with` block raises."""
    with turns.taken(), start(program, arguments, limits, **options) as process:
        try:
            yield process
        except BaseException:  # also Ctrl-C
            process.kill()
            raise

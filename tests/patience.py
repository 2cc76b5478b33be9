"""Waiting in tests for as long as there is progress.

A wait here has no time limit, since a busy machine may take any time for any step. It fails once the processes that it waits for
stand still: over the last QUIET_SECONDS nearly no look at them found one that ran, or that waited for a core or a disk. Processes
that never stand still and never get there are ended by the suite's guard (`faulthandler_timeout` in pyproject.toml).
"""

import contextlib
import os
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import psutil

QUIET_SECONDS = 30.0
LOOK_SECONDS = 0.5
BUSY_SHARE = 0.2  # of a core, and of the looks; an open page that nobody touches, with its server, uses 0.05 of a core
COMPILERS = {"ninja", "cc1plus", "nvcc", "cicc"}
TICKS = os.sysconf("SC_CLK_TCK")

Process = psutil.Process | subprocess.Popen[Any]
Answer = TypeVar("Answer")


def eventually(
    condition: Callable[[], Answer],
    of: Iterable[Process] | None = None,
    *,
    quiet: float = QUIET_SECONDS,
    every: float = 0.02,
) -> Answer:
    """Waits for the first truthy answer and returns it; fails when the processes `of` and their descendants stand still.

    `of` None stands for all processes that this one started. `quiet` is in seconds: longer than what waits by a clock may sleep.
    """
    __tracebackhide__ = True
    progress = Progress(of, quiet)
    while not (answer := condition()):
        if progress.has_stopped() and not (answer := condition()):
            raise AssertionError(f"it did not happen, and nothing was going on for {quiet:g} s:\n{progress.describe()}")
        if answer:
            break
        time.sleep(every)
    return answer


def ended(process: "subprocess.Popen[Any]", *, quiet: float = QUIET_SECONDS) -> int:
    """Waits for the end of the process and returns its exit code; fails when it stands still."""
    __tracebackhide__ = True
    eventually(lambda: process.poll() is not None, [process], quiet=quiet)
    return int(process.returncode)


def output_of(process: "subprocess.Popen[Any]", *, quiet: float = QUIET_SECONDS) -> tuple[Any, Any]:
    """`process.communicate()` for a process that may stand still: then it is killed, and the test fails with what it wrote."""
    __tracebackhide__ = True
    progress = Progress([process], quiet)
    while True:
        try:
            return process.communicate(timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if progress.has_stopped():
                told = progress.describe()
                process.kill()
                raise AssertionError(
                    f"it did not end, and nothing was going on:\n{told}\n{process.communicate()}"
                ) from None


def run(argv: list[str], *, quiet: float = QUIET_SECONDS, **options: Any) -> "subprocess.CompletedProcess[Any]":
    """`subprocess.run` with captured output, for a program that may stand still."""
    __tracebackhide__ = True
    check, text = options.pop("check", False), options.pop("input", None)
    with tempfile.TemporaryFile() as typed:
        if text is not None:
            typed.write(text.encode() if isinstance(text, str) else text)
            typed.seek(0)
            options["stdin"] = typed
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(argv, **piped | options) as process:
            output, errors = output_of(process, quiet=quiet)
    done = subprocess.CompletedProcess(argv, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


class Progress:
    """Whether processes, with their descendants, still do something. `of` None: all descendants of this process."""

    def __init__(self, of: Iterable[Process] | None = None, quiet: float = QUIET_SECONDS) -> None:
        self._roots = [os.getpid()] if of is None else [process.pid for process in of]
        self._own = of is None
        self._looks: deque[bool] = deque(maxlen=max(2, round(quiet / LOOK_SECONDS)))
        self._last = time.monotonic()
        self._ticks: dict[int, int] = {}

    def has_stopped(self) -> bool:
        """True once nearly all looks of the last `quiet` seconds found nothing going on. To be called often; it looks when it is
        time. A call that comes late counts as one look: what keeps this process from running keeps the others from it too."""
        passed = time.monotonic() - self._last
        if passed < LOOK_SECONDS:
            return False
        self._last += passed
        self._looks.append(self._is_active(passed))
        return len(self._looks) == self._looks.maxlen and sum(self._looks) < BUSY_SHARE * len(self._looks)

    def describe(self) -> str:
        """The processes, one a line, without the parts of a browser."""
        lines = []
        for pid in self._pids():
            try:
                process = psutil.Process(pid)
                command = " ".join(process.cmdline())
                if "chrom" not in command:
                    seconds = sum(process.cpu_times()[:2])
                    lines.append(f"{pid} {process.status()} {seconds:.1f} s {command[-120:]}")
            except psutil.Error:
                continue
        return "\n".join(lines) or "no process"

    def _is_active(self, seconds: float) -> bool:
        wants_core, ticks = False, {}
        for pid in self._pids():
            for state, used, thread in _threads(pid):
                wants_core = wants_core or state in "RD"
                ticks[thread] = used
        new = sum(used - self._ticks.get(thread, 0) for thread, used in ticks.items()) if self._ticks else 0
        self._ticks = ticks
        return wants_core or new / TICKS > BUSY_SHARE * seconds or compiler_runs()

    def _pids(self) -> list[int]:
        listed = [] if self._own else list(self._roots)
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                listed += [child.pid for child in psutil.Process(root).children(recursive=True)]
        return listed


def compiler_runs() -> bool:
    """True while DeepSpeed's operators are compiled: by one process of a machine, for which those of all tests wait."""
    return any(process.info["name"] in COMPILERS for process in psutil.process_iter(["name"]))


def _threads(pid: int) -> Iterable[tuple[str, int, int]]:
    """State, processor time in ticks and id of each thread (proc_pid_stat(5)); none if the process has ended."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            words = (task / "stat").read_text().rpartition(")")[2].split()
            yield words[0], int(words[11]) + int(words[12]), int(task.name)
    except OSError:
        return

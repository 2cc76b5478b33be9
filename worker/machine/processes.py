"""Starts, finds and kills processes and their descendants."""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from worker.machine.process_identity import LINUX

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WAITING = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)  # for a processor, or a disk
# Loaded here: loading libraries between fork and exec is unsafe.
_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None


def set_child_subreaper() -> None:
    """Makes orphaned descendants children of this process, so that it can find them (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def dying_with_parent(signal_number: int = signal.SIGKILL) -> Callable[[], None]:
    """For `preexec_fn`: sends the child `signal_number` when the thread that starts it ends (Linux).

    On other systems, processes that outlive their supervisor are found by `marked` and killed before the next attempt.
    """
    parent = os.getpid()

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal_number)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None and _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def start_detached(
    argv: list[str], *, output: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process that outlives this one: in its own session, without input, with its output appended to `output`."""
    return _start_process(argv, output, cwd, env, None, subprocess.DEVNULL)


def start_child(
    argv: list[str],
    *,
    output: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    death_signal: int = signal.SIGKILL,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """As `start_detached`, but the process receives `death_signal` when this thread ends, and may have a pipe as its input.

    Call it before other threads start: code between fork and exec may need locks that they hold.
    """
    return _start_process(argv, output, cwd, env, dying_with_parent(death_signal), stdin)


def wait_for_end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Sleeps up to `seconds`, or until the child ends. `Popen.wait` would poll 20 times per second."""
    if child.poll() is not None:
        return
    try:
        handle = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # not Linux, or no free file descriptor
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        return
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.poll(1000 * seconds)
    finally:
        os.close(handle)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _start_process(
    argv: list[str],
    output: Path,
    cwd: Path,
    env: Mapping[str, str] | None,
    prepare: Callable[[], None] | None,
    stdin: int,
) -> subprocess.Popen[bytes]:
    with open(output, "ab", buffering=0, opener=_private) as file:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=file,
            stderr=file,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509
        )


class Activity:
    """Whether a process does anything. A slow process, as all are on a busy machine, is not a stuck one."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._used, self._active = 0.0, time.monotonic()

    def quiet_seconds(self) -> float:
        """The seconds in which no call has found that it used a processor, or waited for one or for a disk; call it regularly."""
        with contextlib.suppress(psutil.NoSuchProcess):
            used, waits = sum(self._process.cpu_times()[:2]), self._process.status() in _WAITING
            if waits or used > self._used:
                self._used, self._active = used, time.monotonic()
        return time.monotonic() - self._active


def is_gone(process: psutil.Process) -> bool:
    """True if the process has ended, its pid is reused, or it is a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All live descendants of `pid` (default: this process), including orphans adopted by a subreaper."""
    try:
        return [process for process in psutil.Process(pid).children(recursive=True) if not is_gone(process)]
    except psutil.NoSuchProcess:
        return []


def marked(name: str, value: str) -> list[psutil.Process]:
    """All other live processes with `name=value` in their environment."""
    found = []
    for process in psutil.process_iter():
        # The environment of other users' processes is not readable.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value and not is_gone(process):
                found.append(process)
    return found


def wait_gone(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Waits up to `seconds` until all have ended; returns those that have not. Does not collect exit codes."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if not is_gone(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if not is_gone(process)]
    return left


def send(processes: Iterable[psutil.Process], signal_number: int) -> None:
    """Sends the signal to each process that still exists."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)


def end(processes: list[psutil.Process], grace: float = 0.0) -> list[psutil.Process]:
    """Sends SIGTERM, waits up to `grace` seconds, sends SIGKILL. Returns those that do not end (blocked in a disk or driver)."""
    if grace > 0:
        send(processes, signal.SIGTERM)
        processes = wait_gone(processes, grace)
    send(processes, signal.SIGKILL)
    return wait_gone(processes, 5.0)


def kill_tree(pid: int, grace: float = 0.0) -> list[psutil.Process]:
    """Ends `pid` and its descendants, as `end` does."""
    try:
        root = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    # List the children while their parent lives: later they have another parent.
    tree = [*descendants(pid), root]
    if grace > 0:
        send(tree, signal.SIGTERM)
        wait_gone(tree, grace)
    return end(list({process.pid: process for process in [*tree, *descendants(pid)]}.values()))


def kill_descendants() -> list[psutil.Process]:
    """Kills all descendants of this process, and those started meanwhile. Returns what is left after 10 s."""
    deadline = time.monotonic() + 10.0
    while (left := descendants()) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        wait_gone(left, 0.2)
    return left


def reap_orphans(keep: int) -> None:
    """Collects ended children that a subreaper adopted (Linux), except `keep`, whose exit code is needed."""
    while LINUX:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == keep:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def memory_kills() -> int | None:
    """The number of processes that the out-of-memory killer ended: in this control group, else on this machine.

    None if the kernel does not report it.
    """
    try:
        lines = _memory_events().read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def _memory_events() -> Path:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            events = Path("/sys/fs/cgroup") / line[3:].lstrip("/") / "memory.events"
            if line.startswith("0::") and events.exists():
                return events
    return Path("/proc/vmstat")

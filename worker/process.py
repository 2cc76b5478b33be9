"""Starting processes so that they end when they should, finding all of them, and ending them for good."""

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

from worker.identity import LINUX

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded here: between fork and exec is no place to load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None


def set_child_subreaper() -> None:
    """Orphans among this process's descendants become its children, so that none is out of sight (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def dying_with_parent(signal_number: int = signal.SIGKILL) -> Callable[[], None]:
    """For `preexec_fn`: the child gets `signal_number` when the thread that starts it ends (Linux).

    Elsewhere there is no such signal; what then outlives its supervisor is found by `marked` and ended before the
    run is started again.
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
    """Starts a process that outlives this one: its own session, no input, what it prints appended to `output`."""
    return _start_process(argv, output, cwd, env, None)


def start_child(
    argv: list[str],
    *,
    output: Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    death_signal: int = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """As `start_detached`, but the process gets `death_signal` when this thread ends, however it ends.

    To be called before other threads are started: what runs between fork and exec may need locks that they hold.
    """
    return _start_process(argv, output, cwd, env, dying_with_parent(death_signal))


def wait_for_end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Sleeps up to `seconds`, less where the child ends. `Popen.wait` would wake 20 times a second to look."""
    if child.poll() is not None:
        return
    try:
        handle = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # not Linux, or no file descriptor is left
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        return
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.poll(1000 * seconds)
    finally:
        os.close(handle)


def _start_process(
    argv: list[str], output: Path, cwd: Path, env: Mapping[str, str] | None, prepare: Callable[[], None] | None
) -> subprocess.Popen[bytes]:
    with output.open("ab", buffering=0) as file:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509
        )


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended: no longer there, its number another's, or a zombie that waits for its parent."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Every living descendant of `pid` (of this process), orphans that a subreaper adopted included."""
    try:
        return [process for process in psutil.Process(pid).children(recursive=True) if not is_gone(process)]
    except psutil.NoSuchProcess:
        return []


def marked(name: str, value: str) -> list[psutil.Process]:
    """Living processes, but this one, that have `name=value` in their environment, wherever they hang in the tree."""
    found = []
    for process in psutil.process_iter():
        # Other people's processes do not show theirs.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value and not is_gone(process):
                found.append(process)
    return found


def wait_gone(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Waits until all have ended, at most `seconds`; returns those that have not. Collects no exit code."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if not is_gone(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if not is_gone(process)]
    return left


def send(processes: Iterable[psutil.Process], signal_number: int) -> None:
    """Signals each that is still the process it was."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)


def end(processes: list[psutil.Process], grace: float = 0.0) -> list[psutil.Process]:
    """SIGTERM, up to `grace` seconds, SIGKILL. Returns what the kernel cannot end (it waits for a disk or a driver)."""
    if grace > 0:
        send(processes, signal.SIGTERM)
        processes = wait_gone(processes, grace)
    send(processes, signal.SIGKILL)
    return wait_gone(processes, 5.0)


def kill_tree(pid: int, grace: float = 0.0) -> list[psutil.Process]:
    """Ends `pid` and everything below it, as `end` does."""
    try:
        root = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    # The children are listed while their parent lives: afterwards nothing ties them to it.
    tree = [*descendants(pid), root]
    if grace > 0:
        send(tree, signal.SIGTERM)
        wait_gone(tree, grace)
    return end(list({process.pid: process for process in [*tree, *descendants(pid)]}.values()))


def kill_descendants() -> list[psutil.Process]:
    """Ends everything below this process, and what that starts meanwhile. Returns what could not be ended in 10 s."""
    deadline = time.monotonic() + 10.0
    while (left := descendants()) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        wait_gone(left, 0.2)
    return left


def reap_orphans(keep: int) -> None:
    """Collects ended children that a subreaper adopted (Linux), but not `keep`, whose exit code its starter wants."""
    while LINUX:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == keep:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def memory_kills() -> int | None:
    """How many processes the kernel has ended for want of memory: in our control group, else on this machine.

    None where the kernel does not say.
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

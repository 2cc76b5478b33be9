"""Takes from this process what is not needed to read some files and to compute: network, writing, other files and processes.

On Linux the kernel refuses it, by what it has of: namespaces of its own (user, network, System V), Landlock, and a filter of system
calls (seccomp, x86-64 and ARM). On every system Python refuses it too (an audit hook), which names what is refused.
"""

import ctypes
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.jail import calls, landlock

_NEW_IPC, _NEW_USER, _NEW_NET = 0x08000000, 0x10000000, 0x40000000  # linux/sched.h
_DEATH_SIGNAL, _SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 1, 22, 2, 38  # linux/prctl.h
_SIGKILL = 9
_CAPABILITIES = 0x20080522  # linux/capability.h: version 3
MOST_THREADS, _MOST_FILES = 64, 256  # of a confined process
_ROOT = Path(__file__).resolve().parents[2]  # the checkout, or site-packages
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime",
    "/dev/null", "/dev/zero", "/dev/urandom", "/proc/self", "/proc/meminfo", "/proc/cpuinfo", "/sys/devices/system/cpu",
)  # fmt: skip
_EVENTS = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.posix_spawn", "os.spawn",
    "os.symlink", "os.system", "pty.spawn", "signal.pthread_kill", "socket.", "subprocess.Popen",
)  # fmt: skip
_WRITING_EVENTS = (
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime", "shutil.", "tempfile.",
)  # fmt: skip


@dataclass(frozen=True)
class Confinement:
    """What holds a process: a filter of system calls, the version of Landlock (0: none), a user namespace of its own, and a network
    namespace without connections."""

    calls: bool = False
    landlock: int = 0
    user: bool = False
    network: bool = False

    @property
    def missing(self) -> list[str]:
        """What this kernel or container does not give, in words."""
        lacks = {
            "seccomp (any system call can be made)": not self.calls,
            "Landlock (all files of the user can be read)": not self.landlock,
            "user namespaces (limits of threads count for the whole user)": not self.user,
            "network namespaces": not self.network,
        }
        return [name for name, lacking in lacks.items() if lacking]


def confine(
    who: str, readable: Iterable[Path], parent: int | None = None, *, writable: Path | None = None
) -> Confinement:
    """Refuses from now on, and says what the kernel refuses of it: network, writing files, reading others than those below
    `readable` and the interpreter's, and starting, ending or changing processes. `who` is named in the errors, such as "a reward".
    The kernel ends this process when `parent` does. It may write below `writable`, where only Landlock keeps it.
    """
    linux = sys.platform == "linux"
    found = _by_kernel([*readable, *libraries()], parent, writable) if linux else Confinement()
    sys.addaudithook(_refusing(who, writes=writable is not None))
    return found


def libraries() -> Iterator[Path]:
    """What an interpreter reads: its libraries, this package, and little of the system. Not the checkout, where the data may be."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = [sysconfig.get_path(name) for name in names] + [f"{sys.base_prefix}/lib", f"{sys.prefix}/lib", *_SYSTEM]
    added = [*sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    yield from map(Path, installed)
    yield from (Path(folder) for folder in added if folder and not _ROOT.is_relative_to(folder))
    yield _ROOT / "training"


def _by_kernel(readable: Iterable[Path], parent: int | None, writable: Path | None) -> Confinement:
    library = ctypes.CDLL(None, use_errno=True)
    user = library.unshare(_NEW_USER | _NEW_NET | _NEW_IPC) == 0
    network = user or library.unshare(_NEW_NET | _NEW_IPC) == 0
    library.capset(struct.pack("=2I", _CAPABILITIES, 0), bytes(24))
    if parent is not None:  # after the change of capabilities, which could undo it
        library.prctl(_DEATH_SIGNAL, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    _limit(resource.RLIMIT_NOFILE, _MOST_FILES)
    if user:  # elsewhere all processes of the user count
        _limit(resource.RLIMIT_NPROC, MOST_THREADS)
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    version = landlock.restrict(library, readable, writable)
    filtered = _filter_calls(library, platform.machine(), writes=writable is not None)
    return Confinement(filtered, version, user, network)


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


def _filter_calls(library: ctypes.CDLL, machine: str, *, writes: bool) -> bool:
    if machine not in calls.MACHINES:
        return False
    instructions = calls.program(machine, os.getpid(), writes=writes)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    return int(library.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(header), 0, 0)) == 0


def _refusing(who: str, *, writes: bool) -> Callable[[str, tuple[Any, ...]], None]:
    refused = _EVENTS if writes else (*_EVENTS, *_WRITING_EVENTS)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if not writes and event == "open" and isinstance(arguments[2], int) and arguments[2] & calls.WRITING:
            raise PermissionError(f"{who} may not write files: {arguments[0]!r}")
        if event.startswith(refused):
            raise PermissionError(
                f"{who} may not use {event}: it has no network, writes no files and starts no processes"
            )

    return refuse

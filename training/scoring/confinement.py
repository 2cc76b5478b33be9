"""Takes from this process what a user's code does not need to score answers: network, writing files, other processes.

On Linux the kernel refuses it: by a network namespace without a connection, where the process may have one (unprivileged user
namespaces are often forbidden in containers), and by a filter of system calls (seccomp, x86-64 and ARM). On every system Python
refuses it too (an audit hook), which names what is refused.
"""

import ctypes
import os
import platform
import struct
import sys
from typing import Any

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # linux/sched.h
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER, _DEATH_SIGNAL = 38, 22, 2, 1  # linux/prctl.h
_SIGKILL = 9
_CAPABILITIES, _READING = 0x20080522, 1 << 1 | 1 << 2  # linux/capability.h: version 3; DAC_OVERRIDE and DAC_READ_SEARCH
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # linux/bpf_common.h
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
_NOT_PERMITTED, _NO_SUCH_CALL = 1, 38  # EPERM; ENOSYS, after which libraries take an older call
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_THREAD = 0x10000  # CLONE_THREAD
_OTHER_ABI = 0x40000000  # the calls of x32
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# The numbers of the calls on x86_64 and aarch64, from the kernel's tables; None: there is no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "creat": (85, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "shmget": (29, 194),
    "mount": (165, 40),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "reboot": (169, 142),
}
_MISSING = {"clone3": (435, 435), "openat2": (437, 437)}  # their flags are in memory, where the filter cannot look
_CLONE, _OPEN, _OPENAT, _TGKILL, _PRLIMIT = (56, 220), (2, None), (257, 56), (234, 131), (302, 261)

_EVENTS = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.mkdir", "os.posix_spawn",
    "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system", "os.truncate", "os.utime", "pty.spawn",
    "shutil.", "signal.pthread_kill", "socket.", "subprocess.Popen", "tempfile.",
)  # fmt: skip


def end_with_parent(parent: int) -> None:
    """The kernel ends this process when `parent` ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def confine() -> None:
    """Refuses network, writing files, and starting, ending or changing processes, from now on."""
    if sys.platform == "linux":
        library = ctypes.CDLL(None, use_errno=True)
        # root needs no user namespace, in which it could not read the files of others, but gives up all its other powers
        library.unshare(_NEW_NET if os.geteuid() == 0 else _NEW_USER | _NEW_NET)
        library.capset(struct.pack("=2I", _CAPABILITIES, 0), struct.pack("=6I", _READING, _READING, 0, 0, 0, 0))
        if platform.machine() in _MACHINES:
            _filter_calls(library, platform.machine())
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        raise PermissionError(f"a reward may not write files: {arguments[0]!r}")
    if event.startswith(_EVENTS):
        raise PermissionError(
            f"a reward may not use {event}: it has no network, writes no files and starts no processes"
        )


def _filter_calls(library: ctypes.CDLL, machine: str) -> None:
    instructions = _program(machine)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    library.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(header), 0, 0)


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as instructions of BPF: (operation, instructions to skip if true, if false, operand)."""
    column = list(_MACHINES).index(machine)
    refuse, number = (_RETURN, 0, 0, _REFUSE | _NOT_PERMITTED), (_LOAD, 0, 0, 0)
    lines = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        refuse,
        number,
        (_AT_LEAST, 0, 1, _OTHER_ABI),
        refuse,
    ]
    for table, answer in ((_REFUSED, _NOT_PERMITTED), (_MISSING, _NO_SUCH_CALL)):
        for call in table.values():
            if (found := call[column]) is not None:
                lines += [(_EQUAL, 0, 1, found), (_RETURN, 0, 0, _REFUSE | answer)]
    own = os.getpid()
    for call, argument, test in (
        (_CLONE, 0, (_ANY_BIT, 1, 0, _THREAD)),
        (_OPEN, 1, (_ANY_BIT, 0, 1, _WRITING)),
        (_OPENAT, 2, (_ANY_BIT, 0, 1, _WRITING)),
        (_TGKILL, 0, (_EQUAL, 1, 0, own)),
        (_PRLIMIT, 0, (_EQUAL, 1, 0, 0)),
    ):
        if (found := call[column]) is not None:
            lines += [(_EQUAL, 0, 4, found), (_LOAD, 0, 0, 16 + 8 * argument), test, refuse, number]
    return [*lines, (_RETURN, 0, 0, _ALLOW)]

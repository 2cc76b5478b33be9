"""The system calls of a confined process, and the filter of seccomp that refuses all others.

They are what Python, numpy, pyarrow and the packages of rewards need to compute and to read files. Their numbers on x86_64 and
aarch64 are those of the kernel's tables; None: there is no such call.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The audit architecture of each machine that has a filter (linux/audit.h)."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # linux/bpf_common.h
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
_NOT_PERMITTED, _NO_SUCH_CALL = 1, 38  # EPERM; ENOSYS, after which libraries take an older call
_OTHER_ABI = 0x40000000  # the calls of x32
_THREAD = 0x10000  # CLONE_THREAD

Numbers = tuple[int | None, int | None]
Instruction = tuple[int, int, int, int]
"""(operation, instructions to skip if true, if false, operand)"""

ALLOWED: dict[str, Numbers] = {
    # files that are open, and what names say
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "write": (1, 64), "writev": (20, 66), "close": (3, 57),
    "lseek": (8, 62), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None), "lstat": (6, None), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, None), "readlinkat": (267, 78), "getcwd": (79, 17), "getdents64": (217, 61), "fadvise64": (221, 223),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59),
    # memory
    "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233), "brk": (12, 214),
    # threads
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "membarrier": (324, 283), "sched_yield": (24, 124),
    "getcpu": (309, 168), "gettid": (186, 178),
    # signals to itself, time
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169),
    "time": (201, None), "times": (100, 153),
    # what it is, and its end
    "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "uname": (63, 160), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179),
    "getrandom": (318, 278), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip

WRITES: dict[str, Numbers] = {
    "open": (2, None), "openat": (257, 56), "pwrite64": (18, 68), "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82),
    "fdatasync": (75, 83), "flock": (73, 32), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "utimensat": (280, 88),
}  # fmt: skip
"""The further calls of a process that writes into a folder, which Landlock holds there."""

ABSENT: dict[str, Numbers] = {"clone3": (435, 435), "openat2": (437, 437)}
"""Their flags are in memory, where the filter cannot look."""


@dataclass(frozen=True)
class Filtered:
    """A call that is allowed in some forms: the `argument` (from 0) is one of `values`, or has a bit of `with_bits`, or none of
    `without_bits`."""

    numbers: Numbers
    argument: int
    values: tuple[int, ...] = ()
    with_bits: int = 0
    without_bits: int = 0


def filtered(own: int) -> dict[str, Filtered]:
    """The calls that are allowed in some forms to the process with the id `own`."""
    return {
        "open": Filtered((2, None), 1, without_bits=WRITING),
        "openat": Filtered((257, 56), 2, without_bits=WRITING),
        "clone": Filtered((56, 220), 0, with_bits=_THREAD),
        "fcntl": Filtered((72, 25), 1, (0, 1, 2, 3, 1030)),  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
        "ioctl": Filtered(
            (16, 29), 1, (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)
        ),  # TCGETS, TIOCGWINSZ, FIONBIO, FIO(N)CLEX
        "prctl": Filtered((157, 167), 0, (15, 16, 0x53564D41)),  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
        "prlimit64": Filtered((302, 261), 0, (0, own)),
        "sched_getaffinity": Filtered((204, 123), 0, (0, own)),
        "kill": Filtered((62, 129), 0, (own,)),
        "tgkill": Filtered((234, 131), 0, (own,)),
    }


def program(machine: str, own: int, *, writes: bool = False) -> list[Instruction]:
    """The filter for the process with the id `own` on a machine, as instructions of BPF. `writes`: it may write files."""
    column = list(MACHINES).index(machine)
    refuse: Instruction = (_RETURN, 0, 0, _REFUSE | _NOT_PERMITTED)
    lines: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, MACHINES[machine]),
        refuse,
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _OTHER_ABI),
        refuse,
    ]
    allowed = ALLOWED | (WRITES if writes else {})
    for numbers, answer in ((allowed, _ALLOW), (ABSENT, _REFUSE | _NO_SUCH_CALL)):
        for call in numbers.values():
            if (found := call[column]) is not None:
                lines += [(_EQUAL, 0, 1, found), (_RETURN, 0, 0, answer)]
    for form in filtered(own).values():
        if (found := form.numbers[column]) is not None:
            tests = list(_tests(form))
            lines += [(_EQUAL, 0, len(tests), found), *tests]
    return [*lines, refuse]


def _tests(form: Filtered) -> Iterator[Instruction]:
    """The instructions that answer for a call of this number."""
    yield _LOAD, 0, 0, 16 + 8 * form.argument  # the low half, which is all that the kernel reads of these
    for place, value in enumerate(form.values):
        yield _EQUAL, len(form.values) - place, 0, value  # to the last instruction
    if form.with_bits:
        yield _ANY_BIT, 1, 0, form.with_bits
    if form.without_bits:
        yield _ANY_BIT, 0, 1, form.without_bits
    yield _RETURN, 0, 0, _REFUSE | _NOT_PERMITTED
    yield _RETURN, 0, 0, _ALLOW

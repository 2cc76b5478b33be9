"""The filter of system calls, run as the kernel runs it, on each machine; and tried by a confined process on this one."""

import errno
import json
import platform
import signal
import subprocess
import sys

import pytest
from paths import ROOT

from training.jail import calls

OWN = 4242
LAST = 600  # beyond the newest call
ALLOW, NOT_PERMITTED, NO_SUCH_CALL = 0x7FFF0000, 0x00050001, 0x00050026
THREAD = 0x10000


def answer(machine, number, arguments=(), audit=None):
    """What the filter answers to a call: BPF as far as it is used."""
    fields = {0: number, 4: calls.MACHINES[machine] if audit is None else audit}
    fields |= {16 + 8 * place: value & 0xFFFFFFFF for place, value in enumerate((*arguments, *[0] * 6)[:6])}
    lines, place, loaded = calls.program(machine, OWN), 0, 0
    while True:
        operation, true, false, operand = lines[place]
        place += 1
        match operation:
            case 0x20:
                loaded = fields[operand]
            case 0x15:
                place += true if loaded == operand else false
            case 0x45:
                place += true if loaded & operand else false
            case 0x35:
                place += true if loaded >= operand else false
            case 0x06:
                return operand


@pytest.mark.parametrize("machine", calls.MACHINES)
def test_every_call_that_is_not_listed_is_refused(machine):
    column = list(calls.MACHINES).index(machine)
    allowed = {numbers[column] for numbers in calls.ALLOWED.values()}
    absent = {numbers[column] for numbers in calls.ABSENT.values()}
    forms = {form.numbers[column] for form in calls.filtered(OWN).values()} - {None}
    assert not allowed & absent and not forms & (allowed | absent)
    for number in range(LAST):
        found = answer(machine, number, [0xFFFFFFFF] * 6)
        wanted = ALLOW if number in allowed else NO_SUCH_CALL if number in absent else NOT_PERMITTED
        if number not in forms:
            assert found == wanted, number
        assert answer(machine, number | 0x40000000) == NOT_PERMITTED  # x32
        assert answer(machine, number, audit=0x40000003) == NOT_PERMITTED  # 32 bits


@pytest.mark.parametrize("machine", calls.MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("openat", [0, 0, 0o2000000], True), ("openat", [0, 0, 0o1], False), ("openat", [0, 0, 0o2], False),
        ("openat", [0, 0, 0o100], False), ("openat", [0, 0, 0o20200002], False), ("openat", [0, 0, 0o1000], False),
        ("clone", [0x3D0F00], True), ("clone", [17], False), ("clone", [0x4000 | 17], False),
        ("fcntl", [0, 1], True), ("fcntl", [0, 1030], True), ("fcntl", [0, 8], False), ("fcntl", [0, 10], False),  # F_SETOWN
        ("fcntl", [0, 4], False), ("fcntl", [0, 15], False), ("fcntl", [0, 1024], False),  # F_SETFL, F_SETOWN_EX, F_SETLEASE
        ("ioctl", [0, 0x5401], True), ("ioctl", [0, 0x5421], True), ("ioctl", [0, 0x5412], False),  # TIOCSTI
        ("ioctl", [0, 0x5452], False), ("ioctl", [0, 0x8901], False),  # FIOASYNC, FIOSETOWN
        ("prctl", [15], True), ("prctl", [1], False), ("prctl", [38], False), ("prctl", [0x59616D61], False),
        ("prlimit64", [0], True), ("prlimit64", [OWN], True), ("prlimit64", [1], False),
        ("kill", [OWN], True), ("kill", [1], False), ("kill", [0], False), ("kill", [0xFFFFFFFF], False),
        ("tgkill", [OWN], True), ("tgkill", [1], False), ("sched_getaffinity", [0], True), ("sched_getaffinity", [1], False),
    ],
)  # fmt: skip
def test_a_call_that_is_needed_in_one_form_is_allowed_in_this_form(machine, name, arguments, allowed):
    number = calls.filtered(OWN)[name].numbers[list(calls.MACHINES).index(machine)]
    assert answer(machine, number, arguments) == (ALLOW if allowed else NOT_PERMITTED)


TRY_ALL = """
import ctypes, json, os, sys
from pathlib import Path
from training.jail import calls
from training.jail.confinement import confine
writes = sys.argv[3] == "True"
confine("this", [], os.getppid(), writable=Path("/nowhere") if writes else None)
library = ctypes.CDLL(None, use_errno=True)
column = list(calls.MACHINES).index(sys.argv[1])
forms = {name: form.numbers[column] for name, form in calls.filtered(0).items()}
known = calls.ALLOWED | (calls.WRITES if writes else {})
passed = {numbers[column] for numbers in known.values()} | set(forms.values())
let = {}
for number in json.loads(sys.argv[2]):
    if number not in passed:
        for given in (0, -1):
            ctypes.set_errno(0)
            result = library.syscall(ctypes.c_long(number), *[ctypes.c_long(given)] * 6)
            if result != -1 or ctypes.get_errno() not in (1, 38):
                let[number] = [result, ctypes.get_errno()]
print(json.dumps([len(passed), let]))
"""


UPROBES = (335, 336)  # on x86_64 no filter sees these; they do nothing outside of a probe


def tried(numbers, *, writes=False):
    command = [sys.executable, "-c", TRY_ALL, platform.machine(), json.dumps(numbers), str(writes)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls of x86_64")
def test_the_calls_that_pass_every_filter_do_nothing():
    for number in UPROBES:
        done = tried([number])
        assert done.returncode == -signal.SIGILL or json.loads(done.stdout)[1] in ({}, {str(number): [-1, errno.ENXIO]})


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in calls.MACHINES, reason="has no filter")
@pytest.mark.parametrize("writes", [False, True])
def test_a_confined_process_can_make_no_other_call(writes):
    done = tried([number for number in range(LAST) if number not in UPROBES], writes=writes)
    assert done.returncode == 0, done.stderr
    passed, let = json.loads(done.stdout)
    assert passed > 60 and let == {}

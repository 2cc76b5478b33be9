"""What confined programs can read, and what is said where a kernel does not confine."""

import ctypes
import json
import sys
from dataclasses import replace

import pytest

from training.jail import landlock
from training.jail.confinement import Confinement
from worker.doctor import AT_START, host_checks
from worker.doctor.finding import State
from worker.machine import programs

has_landlock = pytest.mark.skipif(
    sys.platform != "linux" or not landlock.version(ctypes.CDLL(None, use_errno=True)),
    reason="the kernel has no Landlock",
)


@has_landlock
def test_a_reader_reads_its_file_and_no_other(tmp_path):
    for name in ("own", "other"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "one", "completion": "two"}\n')
    limits = programs.INSPECTION.limits(tmp_path / "own.jsonl")
    own, other = (
        programs.run_limited(programs.INSPECTION, [str(tmp_path / f"{name}.jsonl")], limits)
        for name in ("own", "other")
    )
    assert json.loads(own.output)["rows"] == 1 and not json.loads(own.output)["problems"]
    assert "PermissionError" in other.last_line or "Permission denied" in other.output.decode()
    free = replace(programs.INSPECTION, unconfined="to compare")
    unlimited = programs.run_limited(free, [str(tmp_path / "other.jsonl")])
    assert json.loads(unlimited.output)["rows"] == 1


def test_what_a_kernel_lacks_is_named(monkeypatch):
    assert Confinement(calls=True, landlock=1, user=True, network=True).missing == []
    lacking = Confinement().missing
    assert [name.split()[0] for name in lacking] == ["seccomp", "Landlock", "user", "network"]
    assert host_checks.confinement in AT_START  # the page System shows these
    answer = {"calls": True, "landlock": 0, "user": True, "network": True, "missing": lacking[1:2]}
    monkeypatch.setattr(programs, "run_for_json", lambda *_: answer)
    (found,) = host_checks.confinement()
    assert (
        found.state is State.WARNING
        and found.said == "without Landlock (all files of the user can be read)"
        and found.cure
    )


@has_landlock
def test_this_machine_says_what_it_gives():
    (found,) = host_checks.confinement()
    assert ("Landlock" in found.said) == (found.state is State.OK)

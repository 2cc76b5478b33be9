"""What confined programs can read, and what is said where a kernel does not confine."""

import argparse
import ctypes
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from paths import ROOT

from training.chat import tokenizer
from training.jail import landlock
from training.jail.confinement import Confinement
from training.tokens import make_store
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


TRY_WRITING = """
import json, os, shutil, socket, subprocess, sys
from pathlib import Path
from training.files import write_whole
from training.jail.confinement import confine
given, inside, outside = map(Path, sys.argv[1:])
confine("this program", [given], writable=inside)
done = {}
def attempt(name, what):
    try:
        what()
        done[name] = True
    except OSError:
        done[name] = False
attempt("reads", given.read_text)
attempt("writes", lambda: write_whole(inside / "file", "x"))
attempt("makes folders", lambda: (inside / "folder").mkdir())
attempt("moves", lambda: (inside / "folder").rename(inside / "moved"))
attempt("removes", lambda: shutil.rmtree(inside / "moved"))
attempt("reads others", (outside / "file").read_text)
attempt("writes others", lambda: (outside / "file").write_text("x"))
attempt("writes what it reads", lambda: given.write_text("x"))
attempt("removes others", (outside / "file").unlink)
attempt("moves others", lambda: (outside / "file").rename(inside / "file"))
attempt("links others", lambda: os.link(outside / "file", inside / "link"))
attempt("makes links", lambda: (inside / "link").symlink_to(outside))
attempt("connects", socket.socket)
attempt("starts programs", lambda: subprocess.run(["true"]))
print(json.dumps(done))
"""


@has_landlock
def test_a_program_that_writes_into_a_folder_reaches_no_other(tmp_path):
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "given").write_text("given")
    (tmp_path / "outside" / "file").write_text("secret")
    command = [sys.executable, "-c", TRY_WRITING, *(str(tmp_path / name) for name in ("given", "inside", "outside"))]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    assert [name for name, done in found.items() if done] == ["reads", "writes", "makes folders", "moves", "removes"]
    assert (tmp_path / "outside" / "file").read_text() == "secret"


def test_tokenizing_confines_itself_before_it_reads_what_others_wrote(tmp_path, monkeypatch):
    """It cannot be confined from outside: a tokenizer of the hub is downloaded first."""
    asked = []
    monkeypatch.setattr(make_store, "confine", lambda *given, **named: asked.append((given, named)))

    def load(*_):
        assert asked
        raise ZeroDivisionError

    monkeypatch.setattr(tokenizer, "load", load)
    (tmp_path / "model").mkdir()
    options = argparse.Namespace(
        file=tmp_path / "rows", model=str(tmp_path / "model"), revision=None, into=tmp_path / "tokens" / "x", rows=0
    )
    with pytest.raises(ZeroDivisionError):
        make_store._make(options)
    ((_, readable), named), *more = asked
    assert (readable, named, more) == ([options.file, tmp_path / "model"], {"writable": tmp_path / "tokens"}, [])


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

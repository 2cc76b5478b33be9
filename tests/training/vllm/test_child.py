"""The process between Lathe and vLLM ends vLLM's own processes, also if the one that started it is killed."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from paths import ROOT
from patience import eventually

pytestmark = pytest.mark.slow


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program with a process of its own, whose ID it prints."""
    script = tmp_path / "vllm"
    script.write_text("#!/bin/sh\nsleep 1000 &\necho $!\nwait\n")
    script.chmod(0o700)
    return script


@pytest.mark.parametrize("killed", [False, True])
def test_its_own_processes_end_with_it_and_with_its_parent(program: Path, killed: bool) -> None:
    starts = (
        "import subprocess, sys; "
        f"subprocess.run([{sys.executable!r}, '-m', 'training.vllm.child', {str(program)!r}], cwd={str(ROOT)!r})"
    )
    argv = ["-c", starts] if killed else ["-m", "training.vllm.child", str(program)]
    process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    own = int(process.stdout.readline())
    process.kill() if killed else process.terminate()
    eventually(lambda: gone(own))
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(("code", "status"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -15 $$", -15)])
def test_it_ends_as_the_command_ended(code: str, status: int) -> None:
    argv = [sys.executable, "-m", "training.vllm.child", "/bin/sh", "-c", code]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == status

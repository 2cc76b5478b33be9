"""Processes: identifying them, and ending whole trees."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from paths import ROOT
from patience import eventually

from worker.machine import processes
from worker.machine.process_identity import Identity, hostname, me

SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]
DEAF = [
    sys.executable,
    "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()",
]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the kernel has no such service elsewhere")


@pytest.fixture
def started() -> Iterator[list[psutil.Process]]:
    """Processes that the fixture ends after the test."""
    kept: list[psutil.Process] = []
    yield kept
    processes.end(kept)


def start(argv: list[str], kept: list[psutil.Process]) -> subprocess.Popen[bytes]:
    popen = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    kept.append(psutil.Process(popen.pid))
    return popen


def test_an_identity_matches_its_process_until_it_ends(started: list[psutil.Process]) -> None:
    with start(SLEEP, started) as popen:
        identity = Identity.of(popen.pid)
        assert Identity.parse(str(identity)) == identity
        assert identity.alive
        assert not identity.provably_dead(only_machine=True)
        popen.kill()
        popen.wait()
    assert identity.provably_dead(only_machine=False)


def test_a_zombie_counts_as_ended(started: list[psutil.Process]) -> None:
    with start(SLEEP, started) as popen:
        identity = Identity.of(popen.pid)
        popen.kill()
        eventually(lambda: not identity.alive)
        assert psutil.pid_exists(popen.pid)


def test_a_reused_pid_does_not_match() -> None:
    recycled = Identity(me().host, me().pid, f"{me().start}0")
    assert recycled.provably_dead(only_machine=False)


@linux_only
def test_a_process_from_before_a_reboot_is_dead_on_a_uniquely_named_machine() -> None:
    earlier = Identity(hostname(), me().pid, "00000000" + me().start[8:])
    assert earlier.provably_dead(only_machine=True)
    assert not earlier.provably_dead(only_machine=False)


@pytest.mark.parametrize("text", ["", None, "host", "host:x:1", "host:1"])
def test_an_invalid_identity_text_is_none(text: str | None) -> None:
    assert Identity.parse(text) is None


def test_a_process_of_another_machine_is_never_known_to_be_dead() -> None:
    assert not Identity("elsewhere", 1, "1").provably_dead(only_machine=True)


@pytest.mark.parametrize("grace", [0.0, 0.3])
def test_killing_a_tree_includes_grandchildren_with_their_own_session(
    started: list[psutil.Process], grace: float
) -> None:
    nested = f"import subprocess; subprocess.Popen({DEAF!r}, start_new_session=True).wait()"
    with start([sys.executable, "-c", nested], started) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        below = processes.descendants(popen.pid)
        assert len(below) == 1
        assert processes.kill_tree(popen.pid, grace) == []
    assert all(processes.is_gone(child) for child in below)


def test_a_process_that_handles_sigterm_is_not_killed(started: list[psutil.Process]) -> None:
    with start(SLEEP, started) as popen:
        processes.kill_tree(popen.pid, grace=5)
        assert popen.wait() == -signal.SIGTERM


def test_a_process_is_found_by_an_environment_variable(started: list[psutil.Process]) -> None:
    with subprocess.Popen(SLEEP, env=os.environ | {"MARK_OF_TEST": str(os.getpid())}) as popen:
        started.append(psutil.Process(popen.pid))
        eventually(lambda: [result.pid for result in processes.marked("MARK_OF_TEST", str(os.getpid()))] == [popen.pid])
        popen.kill()


PARENT = """
import os, signal, sys
from pathlib import Path
from worker.machine import processes
processes.set_child_subreaper()
{start}
print(child.pid, flush=True)
signal.pause()
"""


@linux_only
@pytest.mark.parametrize("kind", ["start_child", "start_detached"])
def test_a_child_ends_with_its_killed_parent_and_a_detached_process_does_not(
    started: list[psutil.Process], tmp_path: Path, kind: str
) -> None:
    code = f"child = processes.{kind}({SLEEP!r}, output=Path({str(tmp_path / 'out')!r}), cwd=Path('/'))"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(start=code)], stdout=subprocess.PIPE, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        started.append(child)
        parent.kill()
    if kind == "start_child":
        eventually(lambda: processes.is_gone(child))
    else:
        time.sleep(0.2)
        assert not processes.is_gone(child)


ADOPT = """
import os, subprocess, sys
from worker.machine import processes
processes.set_child_subreaper()
code = "import subprocess; print(subprocess.Popen(['sleep', 'infinity']).pid, flush=True)"
with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as middle:
    orphan = int(middle.stdout.readline())
    middle.wait()
    found = [found.pid for found in processes.descendants()]
    processes.kill_descendants()
processes.reap_orphans(keep=-1)
print(found == [orphan], os.path.exists(f"/proc/{orphan}"))
"""


@linux_only
def test_a_subreaper_adopts_and_reaps_an_orphan() -> None:
    done = subprocess.run([sys.executable, "-c", ADOPT], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["True", "False"]


@linux_only
def test_the_kernels_count_of_out_of_memory_kills_can_be_read() -> None:
    assert isinstance(processes.memory_kills(), int)

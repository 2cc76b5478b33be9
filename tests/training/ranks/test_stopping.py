"""Ranks do not outlive their supervisor."""

import os
import signal
import subprocess
import sys

import pytest
from paths import ROOT

from training.run_folder.paths import SUPERVISOR_VARIABLE

RANK = "from training.ranks.stopping import die_with_parent; die_with_parent(); print('trains')"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")


def rank_of(supervisor: int) -> "subprocess.CompletedProcess[str]":
    """A rank that starts under a supervisor with this process ID."""
    env = os.environ | {SUPERVISOR_VARIABLE: str(supervisor)}
    return subprocess.run([sys.executable, "-c", RANK], env=env, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_rank_trains_while_its_supervisor_lives() -> None:
    assert rank_of(os.getpid()).stdout == "trains\n"


@pytest.mark.parametrize("collected", [False, True])
def test_a_rank_that_starts_after_its_supervisor_was_killed_ends(collected: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as supervisor:
        supervisor.kill()
        os.waitid(os.P_PID, supervisor.pid, os.WEXITED | (0 if collected else os.WNOWAIT))
        done = rank_of(supervisor.pid)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")

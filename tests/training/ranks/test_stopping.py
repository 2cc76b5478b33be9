"""Ranks do not outlive their supervisor, and a stop before training is not lost."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT
from patience import run

from training.config.run_config import RunConfig
from training.errors import EXPECTED_EXIT, StopRequested
from training.ranks.stopping import StopSignal
from training.run_folder.paths import SUPERVISOR_VARIABLE

RANK = "from training.ranks.stopping import die_with_parent; die_with_parent(); print('trains')"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")


def rank_of(supervisor: int) -> "subprocess.CompletedProcess[str]":
    """A rank that starts under a supervisor with this process ID."""
    env = os.environ | {SUPERVISOR_VARIABLE: str(supervisor)}
    return run([sys.executable, "-c", RANK], env=env, cwd=ROOT, text=True)


def test_a_rank_trains_while_its_supervisor_lives() -> None:
    assert rank_of(os.getpid()).stdout == "trains\n"


@pytest.mark.parametrize("collected", [False, True])
def test_a_rank_that_starts_after_its_supervisor_was_killed_ends(collected: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as supervisor:
        supervisor.kill()
        os.waitid(os.P_PID, supervisor.pid, os.WEXITED | (0 if collected else os.WNOWAIT))
        done = rank_of(supervisor.pid)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    before, stop = signal.getsignal(signal.SIGTERM), StopSignal()
    stop.install()
    yield stop
    signal.signal(signal.SIGTERM, before)


def test_a_library_that_catches_exceptions_does_not_lose_a_stop(stop: StopSignal) -> None:
    with pytest.raises(StopRequested), contextlib.suppress(Exception):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_that_arrives_in_a_finalizer_ends_the_run_at_its_next_phase(stop: StopSignal) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)  # Python ignores what is raised in here

    stop.check()
    Finalized()
    with pytest.raises(StopRequested):
        stop.check()


IMPORT = """
import signal, sys
from training import train
from training.config.run_config import RunConfig
from training.errors import StopRequested

def interrupted(*arguments):
    try:
        signal.raise_signal(signal.{signal})
    except StopRequested:
        raise TypeError("expected a message argument")  # as Python's import statement may answer
    raise TypeError("no stop")

train.train = interrupted
sys.argv[1:] = sys.argv[-1:]
train.main()
"""


@pytest.mark.parametrize(("signal_name", "code", "event"), [("SIGTERM", 0, "stopped"), ("SIGWINCH", 1, "no stop")])
def test_a_stop_that_an_import_turns_into_an_error_of_its_own_is_a_stop(
    tmp_path: Path, signal_name: str, code: int, event: str
) -> None:
    (tmp_path / "config.json").write_text(RunConfig(model="m", data="d").model_dump_json())
    done = run([sys.executable, "-c", IMPORT.format(signal=signal_name), str(tmp_path)], cwd=ROOT, text=True)
    assert done.returncode == code, done.stderr
    assert event in (tmp_path / "events.jsonl").read_text()


ENDING = """
import signal, sys
from training import train
from training.errors import {error}
from training.reports.report import Report

def stopped_while(write):
    def written(*arguments):
        signal.raise_signal(signal.SIGTERM)
        write(*arguments)
    return written

def ends(*arguments):
    raise {raised}

Report.failed, Report.for_run = stopped_while(Report.failed), stopped_while(Report.for_run)
train.train = ends
train.leave_out = lambda config: None
Report.enter = lambda report, phase: None
sys.argv[1:] = sys.argv[-1:]
train.main()
"""


@pytest.mark.parametrize(
    ("raised", "code", "event"),
    [("UserError('rows', 0, 'no rows', 'Add rows.')", EXPECTED_EXIT, "no rows"), ("StopRequested()", 0, "stopped")],
)
def test_a_stop_does_not_interrupt_what_a_run_writes_of_its_end(
    tmp_path: Path, raised: str, code: int, event: str
) -> None:
    (tmp_path / "config.json").write_text(RunConfig(model="m", data="d").model_dump_json())
    program = ENDING.format(error=raised.partition("(")[0], raised=raised)
    done = run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, text=True)
    assert done.returncode == code, done.stderr
    assert event in (tmp_path / "events.jsonl").read_text() and "Traceback" not in done.stderr

"""Runs with real supervisors and the stand-in for the training program, for tests."""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from paths import PROGRAMS, ROOT
from programs.stand_in import GRACES

from training.config.run_config import RunConfig
from training.run_folder.paths import RUN_VARIABLE
from worker.engines.local import starting
from worker.machine import processes as process
from worker.machine.process_identity import me
from worker.machine.processes import is_gone
from worker.settings import get_settings
from worker.store import claims, database, history, logs, runs
from worker.store.tables import Request, Run, RunEvent
from worker.supervision.standby import SUPERVISOR_LOG

STAND_IN = PROGRAMS / "stand_in.py"


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(STAND_IN), "supervise", *arguments]


def queue_run(**behaviour: Any) -> str:
    config = RunConfig(model=json.dumps(behaviour), data="none")
    with database.write() as session:
        return runs.create(session=session, config=config, dataset_id=None, name="a run").id


def get(run_id: str) -> Run:
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)


def eventually(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Waits for and returns the first truthy answer; fails after the time limit."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return answer


def living(run_id: str) -> list[psutil.Process]:
    """Returns the processes that train the run, wherever they are in the process tree."""
    return process.marked(RUN_VARIABLE, run_id)


@cache
def nursery() -> subprocess.Popen[str]:
    """The process that forks supervisors; it ends with the tests."""
    argv = [sys.executable, str(STAND_IN), "nursery"]
    started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(_close, started)
    return started


def _close(started: subprocess.Popen[str]) -> None:
    started.communicate()


@dataclass
class Supervised:
    """A claimed run and its supervisor's process."""

    run_id: str
    process: psutil.Process

    @property
    def run_dir(self) -> Path:
        return get_settings().runs_dir / self.run_id

    @property
    def run(self) -> Run:
        return get(self.run_id)

    def wait(self, seconds: float = 30) -> Run:
        """Waits until the supervisor has ended, and returns the run."""
        eventually(lambda: is_gone(self.process), seconds)
        return self.run

    def until(self, condition: Callable[[Run], Any], seconds: float = 20) -> Any:
        return eventually(lambda: condition(self.run), seconds)

    def reaches(self, phase: str) -> None:
        self.until(lambda run: run.phase == phase)

    def request(self, request: Request) -> None:
        with database.write() as session:
            if request is Request.STOP:
                runs.request_stop(session=session, run_id=self.run_id)
            else:
                session.get_one(Run, self.run_id).request = request

    def stopped(self) -> Run:
        self.request(Request.STOP)
        return self.wait()

    def events(self) -> list[RunEvent]:
        with database.read() as session:
            return history.events(session=session, run_id=self.run_id)

    def told(self) -> str:
        return "\n".join(event.message for event in self.events())

    def log(self) -> list[str]:
        with database.read() as session:
            return [line.text for line in logs.tail(session=session, run_id=self.run_id, limit=100_000)]


@contextlib.contextmanager
def supervise(run_id: str, **graces: float) -> Iterator[Supervised]:
    """Claims the run like a worker and starts its supervisor; kills all processes at the end."""
    lease = get_settings().lease_seconds
    device = f"{me().host}/cpu"
    with database.write() as session:
        run = claims.claim(session=session, run_id=run_id, owner=str(me()), devices=[device], lease_seconds=lease)
    assert run is not None
    folder = get_settings().runs_dir / run_id
    folder.mkdir(exist_ok=True)
    asked = {"arguments": [run.id, str(run.attempt)], "log": str(folder / SUPERVISOR_LOG)}
    asked["env"] = os.environ | {"PYTHONPATH": str(ROOT), GRACES: json.dumps(graces)}
    stdin, stdout = nursery().stdin, nursery().stdout
    assert stdin and stdout
    stdin.write(json.dumps(asked) + "\n")
    stdin.flush()
    started = psutil.Process(int(stdout.readline()))
    try:
        yield Supervised(run_id, started)
    finally:
        process.end([started])
        assert eventually(lambda: not living(run_id))


@pytest.fixture
def quick_leases(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of 4 s."""
    monkeypatch.setenv("LATHE_LEASE_SECONDS", "4")
    monkeypatch.setenv("LATHE_RENEW_SECONDS", "0.5")
    get_settings.cache_clear()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes supervisors of the test use the stand-in, and ends them with the test."""
    monkeypatch.setattr(starting, "supervisor_command", command)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nursery()
    before = children()
    yield
    for child in children():
        if child not in before:
            process.kill_tree(child.pid)


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if not process.is_gone(child)]

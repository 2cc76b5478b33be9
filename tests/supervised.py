"""Runs with real supervisors and the stand-in for the training program, for tests."""

import atexit
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import patience
import psutil
import pytest
import warm
from paths import PROGRAMS, ROOT
from programs.stand_in import GO_FILE, GRACES
from programs.stand_in_nursery import Nursery

from training.config.run_config import RunConfig
from training.run_folder.paths import RUN_VARIABLE, SUPERVISOR_LOG
from worker.engines.local import starting
from worker.machine import processes as process
from worker.machine.process_identity import me
from worker.machine.processes import is_gone
from worker.settings import get_settings
from worker.store import claims, database, history, runs
from worker.store.tables import Request, Run, RunEvent

STAND_IN = PROGRAMS / "stand_in.py"
ENDLESS = {"steps": 100_000, "pause": 0.05, "save_at": 2}


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(STAND_IN), "supervise", *arguments]


def queue_run(**behaviour: Any) -> str:
    config = RunConfig(model=json.dumps(behaviour), data="none")
    with database.write() as session:
        return runs.create(session=session, config=config, dataset_id=None, name="a run").id


def get(run_id: str) -> Run:
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)


def living(run_id: str) -> list[psutil.Process]:
    """Returns the processes that train the run, wherever they are in the process tree."""
    return process.marked(RUN_VARIABLE, run_id)


@cache
def nursery() -> Nursery:
    """The process that forks supervisors and workers; it ends with the tests."""
    started = Nursery.started()
    atexit.register(started.close)
    return started


def expire(run_id: str) -> None:
    """Sets the end of the run's lease into the past."""
    with database.write() as session:
        session.get_one(Run, run_id).expires_at = 1.0


def freeze(run_id: str, holder: psutil.Process) -> None:
    """Freezes the supervisor and lets its lease expire, at a moment at which it does not lock the database."""
    with database.write() as session:
        session.get_one(Run, run_id).expires_at = 1.0
        session.flush()
        holder.send_signal(signal.SIGSTOP)
        patience.eventually(lambda: holder.status() == psutil.STATUS_STOPPED)


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

    def wait(self) -> Run:
        """Waits until the supervisor has ended, and returns the run."""
        self.until(lambda _: is_gone(self.process))
        return self.run

    def until(self, condition: Callable[[Run], Any]) -> Any:
        """Waits for and returns the condition's first truthy answer."""
        try:
            return patience.eventually(lambda: condition(self.run))
        except AssertionError as error:
            run, log = self.run, (self.run_dir / SUPERVISOR_LOG).read_text()
            state = f"{run.status}, attempt {run.attempt}, {run.phase}, step {run.step}, held by {run.holder}"
            error.add_note(f"{state}\n{self.told()}\n{log}")
            raise

    def go(self) -> None:
        """Ends the wait of a stand-in with the behaviour `hold`."""
        (self.run_dir / GO_FILE).touch()

    def ranks(self) -> list[psutil.Process]:
        found = []
        for one in living(self.run_id):
            with contextlib.suppress(psutil.Error):  # it has just ended
                found += [one] if "rank" in one.cmdline() else []
        return found

    def writes(self, record: bytes) -> None:
        """Waits until a rank has written this into its events."""
        file = self.run_dir / "events.jsonl"
        patience.eventually(lambda: file.exists() and record in file.read_bytes())

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
            return [line.text for line in history.log_tail(session=session, run_id=self.run_id, limit=100_000)]


@contextlib.contextmanager
def supervise(run_id: str, *, lease_seconds: float | None = None, **graces: float) -> Iterator[Supervised]:
    """Claims the run like a worker and starts its supervisor; kills all processes at the end."""
    settings = get_settings()
    lease = lease_seconds or settings.lease_seconds
    device = f"{me().host}/cpu"
    with database.write() as session:
        run = claims.claim(session=session, run_id=run_id, owner=str(me()), devices=[device], lease_seconds=lease)
    assert run is not None
    folder = settings.runs_dir / run_id
    folder.mkdir(exist_ok=True)
    leases = {"LATHE_LEASE_SECONDS": str(lease), "LATHE_RENEW_SECONDS": str(min(lease / 3, 1.0))}
    env = os.environ | leases | {"PYTHONPATH": str(ROOT), GRACES: json.dumps(graces)}
    module, arguments = "worker.supervision.supervisor", [run.id, str(run.attempt)]
    started = nursery().fork(module, arguments, folder / SUPERVISOR_LOG, env=env).process
    try:
        yield Supervised(run_id, started)
    finally:
        process.end([started])
        patience.eventually(lambda: not living(run_id), every=0.1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Supervisors that the test's worker starts are forked and use the stand-in, and end with the test."""
    monkeypatch.setattr(process, "start_detached", nursery().start_detached)
    monkeypatch.setattr(starting._standby, "prepare", lambda command: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    before = children()
    yield
    for child in children():
        if child not in before:
            process.kill_tree(child.pid)


def children() -> list[psutil.Process]:
    """The processes that this one, or its nursery, started, without those of the session: what the warm launcher forks, which this
    one may have started, and a PostgreSQL server, which a test has started again."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if not warm.is_launcher(child) and child.name() != "postgres":
                found += [child, *child.children(recursive=True)]
    return [child for child in found if not process.is_gone(child)]

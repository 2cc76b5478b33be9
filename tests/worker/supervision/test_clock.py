"""The machine's clock is set forward or back by a day: no training ends, and lost runs are still found."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from paths import PROGRAMS, ROOT, TESTS
from patience import eventually
from supervised import ENDLESS, get, living, queue_run

from worker.machine import processes
from worker.machine.process_identity import Identity
from worker.settings import get_settings
from worker.store import claims
from worker.store import database as db
from worker.store.tables import Attempt, Run

pytestmark = pytest.mark.slow


class Worker:
    """A worker whose clock can be set, also for its child processes."""

    def __init__(self, library: Path, clock: Path) -> None:
        self._clock = clock
        self.set("+0")
        faked = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # on a real machine nobody can set the monotonic clock
            "PYTHONPATH": os.pathsep.join([str(TESTS / "faked_clock"), str(ROOT), str(TESTS)]),
        }
        self.process = subprocess.Popen([sys.executable, str(PROGRAMS / "clocked_worker.py")], env=os.environ | faked)

    def set(self, offset: str) -> None:
        """Sets its clock to the true time plus this offset."""
        part = self._clock.with_suffix(".part")
        part.write_text(offset)
        part.replace(self._clock)

    def end(self) -> None:
        processes.kill_tree(self.process.pid)
        self.process.wait()


@pytest.fixture
def worker(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("no libfaketime is installed; on Debian: apt-get install faketime")
    monkeypatch.setenv("LATHE_LEASE_SECONDS", "600")
    monkeypatch.setenv("LATHE_RENEW_SECONDS", "1")
    get_settings.cache_clear()
    started = Worker(library, tmp_path / "clock")
    yield started
    started.end()


@pytest.mark.nightly
@pytest.mark.parametrize("offset", ["+1d", "-1d"])
def test_setting_the_clock_by_a_day_ends_no_run_and_lost_runs_are_still_found(worker: Worker, offset: str) -> None:
    run_id = queue_run(**ENDLESS)
    before = eventually(lambda: (run := get(run_id)).step > 2 and run)
    worker.set(offset)
    jumped = eventually(lambda: (run := get(run_id)).step > before.step + 20 and renewed_since(run, before) and run)
    worker.set("+0")
    back = eventually(lambda: (run := get(run_id)).step > jumped.step and renewed_since(run, jumped) and run)
    assert (jumped.attempt, back.attempt) == (1, 1)
    worker.set(offset)
    supervisor = Identity.parse(back.holder)
    assert supervisor
    psutil.Process(supervisor.pid).kill()
    eventually(lambda: get(run_id).attempt == 2 and get(run_id).phase == "training")
    assert len([process for process in living(run_id) if "rank" in process.cmdline()]) == 1


def renewed_since(run: Run, before: Run) -> bool:
    """True if the lease was renewed after the clock was set."""
    return abs((run.expires_at or 0) - (before.expires_at or 0)) > 3600


def test_the_limit_of_attempts_applies_after_the_clock_was_set_back(database: str) -> None:
    run_id = queue_run()
    with db.write() as session:
        session.get_one(Run, run_id).queued_at += 86_400
    for number in (1, 2):
        with db.write() as session:
            session.add(Attempt(run_id=run_id, number=number, host="node", started_at=0.0, outcome="lost"))
    with db.read() as session:
        assert claims.failed_attempts(session=session, run=get(run_id)) == 2

"""The worker's rounds: what is lost is found, ended, queued again and started; nothing that lives is touched."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from stand_in import ROOT
from supervised import command, eventually, get, living, nursery, queue_run, quick_leases, supervise  # noqa: F401

from worker import database as db
from worker import process, reaper, runs, starting
from worker.identity import Identity, hostname, me
from worker.models import Request, Run, Status
from worker.settings import get_settings

pytestmark = pytest.mark.usefixtures("home")
SLOW = {"steps": 1000, "pause": 0.05, "save_at": 2}
DEAD = str(Identity(hostname(), 2**22 - 1, me().start))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Supervisors that are started in the test train with the stand-in, and end with the test."""
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


def claimed(owner: str, *, attempts: int = 1, **behaviour: object) -> Run:
    """A run that `owner` holds, lost as often before as `attempts` says."""
    run_id = queue_run(**behaviour)
    for attempt in range(1, attempts + 1):
        with db.write() as session:
            run = runs.claim(session=session, run_id=run_id, owner=owner, devices=[f"{hostname()}/cpu"], lease_seconds=100)
            assert run is not None
            if attempt < attempts:
                runs.requeue(session=session, run_id=run_id, attempt=attempt, reason="lost", outcome="lost")
    return get(run_id)


def test_a_run_whose_supervisor_was_killed_is_resumed_and_finishes(started: None) -> None:
    run_id = queue_run(steps=40, pause=0.05, save_at=3)
    with supervise(run_id) as it:
        it.until(lambda run: run.step > 4)
        assert reaper.lost_runs() == []
        it.process.kill()
        eventually(lambda: process.is_gone(it.process))
        reaper.look()
        run = it.until(lambda run: run.attempt == 2 and run.status is Status.FINISHED and run)
        assert "ended unexpectedly. It goes on from its last whole checkpoint." in it.told()
        assert "Resumed from step 3." in it.told()
    assert run.step == 40


@pytest.mark.usefixtures("quick_leases")
def test_a_supervisor_that_hangs_beyond_its_lease_is_ended_with_its_trainer() -> None:
    with supervise(queue_run(**SLOW)) as it:
        it.until(lambda run: run.step > 2)
        it.process.send_signal(signal.SIGSTOP)
        lost = eventually(reaper.lost_runs)
        assert reaper.recover(lost[0])
        assert (it.run.status, living(it.run_id)) == (Status.QUEUED, [])
        assert "Nothing was heard of it for 4 s" in it.told()


def test_a_run_claimed_by_a_worker_that_died_is_queued_again(database: str) -> None:
    run = claimed(DEAD)
    assert [lost.id for lost in reaper.lost_runs()] == [run.id]
    assert reaper.recover(run)
    assert get(run.id).status is Status.QUEUED


def test_a_run_lost_too_often_fails_and_says_so(database: str) -> None:
    run = claimed(DEAD, attempts=3)
    assert reaper.recover(run)
    ended = get(run.id)
    assert ended.status is Status.FAILED
    assert ended.error is not None
    assert "ended unexpectedly. It was tried 3 times." in ended.error["message"]


def test_a_run_that_was_asked_to_stop_is_stopped_when_it_is_lost(database: str) -> None:
    run = claimed(DEAD)
    with db.write() as session:
        runs.request_stop(session=session, run_id=run.id)
    reaper.recover(run)
    assert get(run.id).status is Status.STOPPED


def test_ending_runs_by_force_does_not_count_against_their_attempts(database: str) -> None:
    run = claimed(DEAD, attempts=3)
    with db.write() as session:
        session.get_one(Run, run.id).request = Request.REQUEUE
    reaper.recover(run)
    assert get(run.id).status is Status.QUEUED


def test_a_run_taken_over_meanwhile_is_left_alone(database: str) -> None:
    run = claimed(DEAD)
    with db.write() as session:
        runs.adopt(session=session, run_id=run.id, attempt=run.attempt, owner=str(me()), lease_seconds=100)
    assert not reaper.recover(run)
    assert get(run.id).status is Status.RUNNING


def test_a_run_on_another_machine_is_left_alone_while_its_lease_holds() -> None:
    claimed("elsewhere:7:1")
    assert reaper.lost_runs() == []


def test_a_supervisor_that_stands_ready_takes_the_next_run_and_the_one_after_is_started_anew(started: None) -> None:
    starting.prepare()
    (ready,) = [child for child in children() if "--standby" in child.cmdline()]
    first, second = queue_run(steps=20, pause=0.05), queue_run(steps=1)
    starting.start_waiting()
    run = eventually(lambda: (run := get(first)).step and run)
    assert run.lease_owner == str(Identity.of(ready.pid))
    eventually(lambda: get(first).status is Status.FINISHED)
    starting.start_waiting()
    eventually(lambda: get(second).status is Status.FINISHED)


def test_a_supervisor_that_stands_ready_ends_with_its_worker(home: Path) -> None:
    code = "from worker import starting; starting.prepare(); print(starting._standby._waiting.pid)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    eventually(lambda: not psutil.pid_exists(int(done.stdout)))


def test_a_supervisor_that_cannot_even_begin_costs_its_run_an_attempt_and_the_queue_moves_on(
    started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATHE_MAX_ATTEMPTS", "2")
    get_settings.cache_clear()
    broken, whole = queue_run(steps=1), queue_run(steps=1)
    stand_in = starting.supervisor_command
    monkeypatch.setattr(
        starting, "supervisor_command", lambda *words: ["/nonexistent"] if words[0] == broken else stand_in(*words)
    )

    def both_ended() -> bool:
        reaper.look()
        return get(broken).status.ended and get(whole).status.ended

    eventually(both_ended)
    assert (get(broken).status, get(whole).status) == (Status.FAILED, Status.FINISHED)


def test_a_living_worker_is_not_ended_for_a_claim_that_ran_out() -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        run = claimed(str(Identity.of(worker.pid)))
        with db.write() as session:
            session.get_one(Run, run.id).lease_expires_at = 1.0
        assert reaper.recover(run)
        assert (get(run.id).status, worker.poll()) == (Status.QUEUED, None)
        worker.kill()


def test_runs_wait_for_the_device_and_then_train_in_the_order_they_came(started: None, home: Path) -> None:
    ids = [queue_run(steps=2) for _ in range(3)]
    rounds = reaper.Reaper()
    rounds.start()
    try:
        eventually(lambda: all(get(run_id).status is Status.FINISHED for run_id in ids), seconds=30)
    finally:
        rounds.stop()
        rounds.join()
    times = [(get(run_id).started_at, get(run_id).finished_at) for run_id in ids]
    assert times == sorted(times)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(times))

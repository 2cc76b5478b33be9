"""The worker's rounds: they find lost runs, kill their processes, requeue and start them; living runs are unchanged."""

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from paths import ROOT
from supervised import children, command, eventually, get, living, queue_run, quick_leases, started, supervise  # noqa: F401

from worker.engines.local import starting
from worker.machine import overload, processes
from worker.machine.process_identity import Identity, hostname, me
from worker.queue import reaper
from worker.settings import get_settings
from worker.store import claims, runs
from worker.store import database as db
from worker.store.tables import Request, Run, Status

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]
SLOW = {"steps": 1000, "pause": 0.05, "save_at": 2}
DEAD = str(Identity(hostname(), 2**22 - 1, me().start))


def standing_ready() -> list[psutil.Process]:
    """Supervisors that wait for a run."""
    return [child for child in children() if "--standby" in child.cmdline()]


def use_leases_of(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setenv("LATHE_LEASE_SECONDS", str(seconds))
    monkeypatch.setenv("LATHE_RENEW_SECONDS", "0.3")
    get_settings.cache_clear()


def adopt(run: Run, *, owner: str, lease_seconds: float) -> None:
    with db.write() as session:
        assert claims.adopt(
            session=session, run_id=run.id, attempt=run.attempt, owner=owner, lease_seconds=lease_seconds
        )


def outcomes(run_id: str) -> list[str]:
    with db.read() as session:
        return [attempt.outcome for attempt in runs.attempts(session=session, run_id=run_id)]


def claimed(owner: str, *, attempts: int = 1, **behaviour: object) -> Run:
    """A run claimed by `owner` that was lost `attempts` times before."""
    run_id = queue_run(**behaviour)
    for attempt in range(1, attempts + 1):
        with db.write() as session:
            run = claims.claim(
                session=session, run_id=run_id, owner=owner, devices=[f"{hostname()}/cpu"], lease_seconds=100
            )
            assert run is not None
            if attempt < attempts:
                claims.requeue(session=session, run_id=run_id, attempt=attempt, reason="lost", outcome="lost")
    return get(run_id)


@pytest.mark.usefixtures("started")
def test_a_run_whose_supervisor_was_killed_is_resumed_and_finishes() -> None:
    run_id = queue_run(steps=40, pause=0.05, save_at=3)
    with supervise(run_id) as it:
        it.until(lambda run: run.step > 4)
        assert reaper.lost_runs() == []
        it.process.kill()
        eventually(lambda: processes.is_gone(it.process))
        reaper.run_round()
        run = it.until(lambda run: run.attempt == 2 and run.status is Status.FINISHED and run)
        assert "ended unexpectedly. It continues from its last complete checkpoint." in it.told()
        assert "Resumed from step 3." in it.told()
    assert run.step == 40


@pytest.mark.usefixtures("quick_leases")
def test_a_supervisor_frozen_beyond_its_lease_is_killed_with_its_trainer() -> None:
    with supervise(queue_run(**SLOW)) as it:
        it.until(lambda run: run.step > 2)
        it.process.send_signal(signal.SIGSTOP)
        lost = eventually(reaper.lost_runs)
        assert reaper.recover(lost[0])
        assert (it.run.status, living(it.run_id)) == (Status.QUEUED, [])
        assert "did not renew its lease for 4 s although it was alive" in it.told()


@pytest.mark.usefixtures("quick_leases")
@pytest.mark.usefixtures("started")
def test_a_frozen_preloaded_supervisor_is_killed_with_its_trainer() -> None:
    starting.prepare()
    (ready,) = eventually(standing_ready)
    run_id = queue_run(**SLOW)
    starting.start_waiting()
    eventually(lambda: get(run_id).step > 2)
    ready.send_signal(signal.SIGSTOP)
    (lost,) = eventually(reaper.lost_runs)
    assert reaper.recover(lost)
    assert (processes.is_gone(ready), living(run_id), get(run_id).status) == (True, [], Status.QUEUED)


@pytest.mark.usefixtures("started")
def test_a_supervisor_that_starts_slower_than_its_lease_costs_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_leases_of(monkeypatch, seconds=3)
    starting.prepare()
    (ready,) = eventually(standing_ready)
    ready.send_signal(signal.SIGSTOP)
    run_id = queue_run(steps=1)
    (run,) = starting.start_waiting()

    def leases_pass() -> bool:
        reaper.run_round()
        with db.read() as session:
            return db.now(session=session) > (run.lease_expires_at or 0) + 2 * 3

    eventually(leases_pass)
    ready.send_signal(signal.SIGCONT)
    ended = eventually(lambda: (run := get(run_id)).status.ended and run)
    assert (ended.status, ended.attempt) == (Status.FINISHED, 1)


def test_an_expired_lease_of_a_living_supervisor_does_not_count_as_an_attempt(database: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as late:
        run = claimed(str(Identity.of(late.pid)), attempts=3)
        adopt(run, owner=str(Identity.of(late.pid)), lease_seconds=-1)
        assert reaper.recover(get(run.id))
        late.wait()
    assert (get(run.id).status, outcomes(run.id)) == (Status.QUEUED, ["lost", "lost", "starved"])


def test_an_attempt_that_another_machine_marked_lost_becomes_starved_if_its_supervisor_lives(database: str) -> None:
    run = claimed(DEAD)
    assert reaper.recover(run)
    with db.write() as session:
        claims.was_starved(session=session, run_id=run.id, attempt=run.attempt)
    assert outcomes(run.id) == ["starved"]


def test_a_lease_renewed_just_before_recovery_remains_valid(database: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as late:
        run = claimed(str(Identity.of(late.pid)))
        adopt(run, owner=str(Identity.of(late.pid)), lease_seconds=-1)
        expired = get(run.id)
        adopt(run, owner=str(Identity.of(late.pid)), lease_seconds=60)
        assert not reaper.recover(expired)
        assert (get(run.id).status, late.poll()) == (Status.RUNNING, None)
        late.kill()


@pytest.mark.usefixtures("started")
def test_an_overloaded_machine_starts_no_runs_until_it_recovers() -> None:
    run_id = queue_run(steps=1)
    gauge = overload.Gauge()
    gauge.take(load=100.0, late=0.0)
    starting.prepare()
    assert (starting.start_waiting(), standing_ready()) == ([], [])
    assert overload.in_words().endswith("(load average of 100 per core).")
    gauge.take(load=0.0, late=0.0)
    assert [run.id for run in starting.start_waiting()] == [run_id]
    assert overload.in_words() == ""


def test_a_run_claimed_by_a_dead_worker_is_requeued(database: str) -> None:
    run = claimed(DEAD)
    assert [lost.id for lost in reaper.lost_runs()] == [run.id]
    assert reaper.recover(run)
    assert get(run.id).status is Status.QUEUED


def test_a_run_that_was_lost_too_often_fails(database: str) -> None:
    run = claimed(DEAD, attempts=3)
    assert reaper.recover(run)
    ended = get(run.id)
    assert ended.status is Status.FAILED
    assert ended.error is not None
    assert "ended unexpectedly. All 3 attempts failed." in ended.error["message"]


def test_a_lost_run_with_a_stop_request_is_stopped(database: str) -> None:
    run = claimed(DEAD)
    with db.write() as session:
        runs.request_stop(session=session, run_id=run.id)
    reaper.recover(run)
    assert get(run.id).status is Status.STOPPED


def test_killing_runs_does_not_count_as_attempts(database: str) -> None:
    run = claimed(DEAD, attempts=3)
    with db.write() as session:
        session.get_one(Run, run.id).request = Request.REQUEUE
    reaper.recover(run)
    assert get(run.id).status is Status.QUEUED


def test_a_run_with_a_new_owner_is_not_recovered(database: str) -> None:
    run = claimed(DEAD)
    with db.write() as session:
        claims.adopt(session=session, run_id=run.id, attempt=run.attempt, owner=str(me()), lease_seconds=100)
    assert not reaper.recover(run)
    assert get(run.id).status is Status.RUNNING


def test_a_run_of_another_machine_is_not_recovered_before_its_lease_expires() -> None:
    claimed("elsewhere:7:1")
    assert reaper.lost_runs() == []


@pytest.mark.usefixtures("started")
def test_a_preloaded_supervisor_takes_the_next_run() -> None:
    starting.prepare()
    (ready,) = eventually(standing_ready)
    first, second = queue_run(steps=20, pause=0.05), queue_run(steps=1)
    starting.start_waiting()
    run = eventually(lambda: (run := get(first)).step and run)
    assert run.lease_owner == str(Identity.of(ready.pid))
    eventually(lambda: get(first).status is Status.FINISHED)
    starting.start_waiting()
    eventually(lambda: get(second).status is Status.FINISHED)


def test_a_preloaded_supervisor_ends_with_its_worker(home: Path) -> None:
    code = "from worker.engines.local import starting; starting.prepare(); print(starting._standby._waiting.pid)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    eventually(lambda: not psutil.pid_exists(int(done.stdout)))


@pytest.mark.usefixtures("started")
def test_a_supervisor_that_fails_to_start_costs_an_attempt_and_the_queue_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LATHE_MAX_ATTEMPTS", "2")
    get_settings.cache_clear()
    broken, whole = queue_run(steps=1), queue_run(steps=1)
    stand_in = starting.supervisor_command
    monkeypatch.setattr(
        starting, "supervisor_command", lambda *words: ["/nonexistent"] if words[0] == broken else stand_in(*words)
    )

    def both_ended() -> bool:
        reaper.run_round()
        return get(broken).status.ended and get(whole).status.ended

    eventually(both_ended)
    assert (get(broken).status, get(whole).status) == (Status.FAILED, Status.FINISHED)


def test_an_expired_claim_does_not_kill_a_living_worker() -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        run = claimed(str(Identity.of(worker.pid)))
        with db.write() as session:
            session.get_one(Run, run.id).lease_expires_at = 1.0
        assert reaper.recover(run)
        assert (get(run.id).status, worker.poll()) == (Status.QUEUED, None)
        worker.kill()


@pytest.mark.usefixtures("started")
def test_runs_train_in_the_order_of_the_queue(home: Path) -> None:
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

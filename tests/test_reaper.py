"""The worker's rounds: what is lost is found, ended, queued again and started; nothing that lives is touched."""

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from stand_in import ROOT
from supervised import children, command, eventually, get, living, queue_run, quick_leases, started, supervise  # noqa: F401

from worker import database as db
from worker import overload, process, reaper, runs, starting
from worker.identity import Identity, hostname, me
from worker.models import Request, Run, Status
from worker.settings import get_settings

pytestmark = pytest.mark.usefixtures("home")
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
        assert runs.adopt(session=session, run_id=run.id, attempt=run.attempt, owner=owner, lease_seconds=lease_seconds)


def outcomes(run_id: str) -> list[str]:
    with db.read() as session:
        return [attempt.outcome for attempt in runs.attempts(session=session, run_id=run_id)]


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


@pytest.mark.usefixtures("started")
def test_a_run_whose_supervisor_was_killed_is_resumed_and_finishes() -> None:
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
        assert "did not renew its lease for 4 s although it was alive" in it.told()


@pytest.mark.usefixtures("quick_leases")
@pytest.mark.usefixtures("started")
def test_a_frozen_supervisor_that_had_stood_ready_is_ended_with_its_trainer() -> None:
    starting.prepare()
    (ready,) = standing_ready()
    run_id = queue_run(**SLOW)
    starting.start_waiting()
    eventually(lambda: get(run_id).step > 2)
    ready.send_signal(signal.SIGSTOP)
    (lost,) = eventually(reaper.lost_runs)
    assert reaper.recover(lost)
    assert (process.is_gone(ready), living(run_id), get(run_id).status) == (True, [], Status.QUEUED)


@pytest.mark.usefixtures("started")
def test_a_supervisor_that_takes_several_leases_to_start_costs_its_run_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_leases_of(monkeypatch, seconds=3)
    starting.prepare()
    (ready,) = standing_ready()
    ready.send_signal(signal.SIGSTOP)
    run_id = queue_run(steps=1)
    (run,) = starting.start_waiting()

    def leases_pass() -> bool:
        reaper.look()
        with db.read() as session:
            return db.now(session=session) > (run.lease_expires_at or 0) + 2 * 3

    eventually(leases_pass)
    ready.send_signal(signal.SIGCONT)
    ended = eventually(lambda: (run := get(run_id)).status.ended and run)
    assert (ended.status, ended.attempt) == (Status.FINISHED, 1)


def test_a_lease_that_ran_out_although_its_supervisor_lived_never_counts_against_the_run(database: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as late:
        run = claimed(str(Identity.of(late.pid)), attempts=3)
        adopt(run, owner=str(Identity.of(late.pid)), lease_seconds=-1)
        assert reaper.recover(get(run.id))
        late.wait()
    assert (get(run.id).status, outcomes(run.id)) == (Status.QUEUED, ["lost", "lost", "starved"])


def test_a_run_that_another_machine_took_for_lost_says_later_that_it_lived(database: str) -> None:
    run = claimed(DEAD)
    assert reaper.recover(run)
    with db.write() as session:
        runs.was_starved(session=session, run_id=run.id, attempt=run.attempt)
    assert outcomes(run.id) == ["starved"]


def test_a_lease_renewed_just_before_its_run_is_recovered_stands(database: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as late:
        run = claimed(str(Identity.of(late.pid)))
        adopt(run, owner=str(Identity.of(late.pid)), lease_seconds=-1)
        expired = get(run.id)
        adopt(run, owner=str(Identity.of(late.pid)), lease_seconds=60)
        assert not reaper.recover(expired)
        assert (get(run.id).status, late.poll()) == (Status.RUNNING, None)
        late.kill()


@pytest.mark.usefixtures("started")
def test_a_machine_that_is_overloaded_starts_nothing_until_it_recovers() -> None:
    run_id = queue_run(steps=1)
    gauge = overload.Gauge()
    gauge.take(load=100.0, late=0.0)
    starting.prepare()
    assert (starting.start_waiting(), standing_ready()) == ([], [])
    assert overload.in_words().endswith("(load average of 100 per core).")
    gauge.take(load=0.0, late=0.0)
    assert [run.id for run in starting.start_waiting()] == [run_id]
    assert overload.in_words() == ""


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


@pytest.mark.usefixtures("started")
def test_a_supervisor_that_stands_ready_takes_the_next_run_and_the_one_after_is_started_anew() -> None:
    starting.prepare()
    (ready,) = standing_ready()
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


@pytest.mark.usefixtures("started")
def test_a_supervisor_that_cannot_even_begin_costs_its_run_an_attempt_and_the_queue_moves_on(
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


@pytest.mark.usefixtures("started")
def test_runs_wait_for_the_device_and_then_train_in_the_order_they_came(home: Path) -> None:
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

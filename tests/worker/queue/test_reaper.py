"""The worker's rounds: they find lost runs, kill their processes, requeue and start them; living runs are unchanged."""

import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from typing import Any

import psutil
import pytest
import warm
from patience import eventually
from programs.stand_in_nursery import Forked
from supervised import (  # noqa: F401
    ENDLESS,
    children,
    command,
    expire,
    freeze,
    get,
    living,
    nursery,
    queue_run,
    started,
    supervise,
)

from training.config.choices import EngineName
from worker.engines import registry
from worker.engines.local import starting
from worker.engines.slurm.engine import SlurmEngine
from worker.machine import overload, processes
from worker.machine.process_identity import Identity, hostname, me
from worker.queue import reaper, tasks
from worker.settings import get_settings
from worker.store import claims, runs
from worker.store import database as db
from worker.store.tables import Request, Run, Status
from worker.store.work import RUN
from worker.supervision.holders import FLAG, Standby

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]
START_DETACHED = processes.start_detached
DEAD = str(Identity(hostname(), 2**22 - 1, me().start))


@pytest.fixture
def preloading(started: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Keeps a real preloaded supervisor."""
    monkeypatch.setattr(starting, "_standby", Standby())
    cold = starting.supervisor_command
    monkeypatch.setattr(
        starting, "supervisor_command", lambda *words: command(*words) if FLAG in words else cold(*words)
    )


@pytest.fixture
def quick_renewals(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holders renew often, so that one that missed three renewals is soon found."""
    monkeypatch.setenv("LATHE_RENEW_SECONDS", "0.05")
    get_settings.cache_clear()


def standing_ready() -> list[psutil.Process]:
    """Supervisors that wait for a run."""
    return [child for child in children() if FLAG in child.cmdline()]


def holder(run_id: str) -> psutil.Process:
    owner = Identity.parse(get(run_id).holder)
    assert owner
    return psutil.Process(owner.pid)


def adopt(run: Run, *, owner: str, lease_seconds: float) -> None:
    with db.write() as session:
        assert RUN.adopt(session, RUN.key_of(run), holder=owner, lease_seconds=lease_seconds, phase="starting")


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


def test_what_the_warm_launcher_forks_does_not_end_with_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of a session of pytest has started it, for the trainings of all."""
    warm.use_python(monkeypatch)
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        forked = int(waiting.stdout.readline())
        ended_with_the_test = [child.pid for child in children()]
        waiting.kill()
    assert forked != waiting.pid and forked not in ended_with_the_test


@pytest.mark.usefixtures("started")
def test_a_run_whose_supervisor_was_killed_is_resumed_and_finishes() -> None:
    run_id = queue_run(steps=8, save_at=3, hold=6)
    with supervise(run_id) as it:
        it.until(lambda run: run.step == 5)
        assert reaper.lost_runs() == []
        it.process.kill()
        eventually(reaper.lost_runs)
        eventually(lambda: living(run_id) == [])
        it.go()
        reaper.run_round()
        assert "Requeued." in it.told()
        run = it.until(lambda run: run.attempt == 2 and run.status is Status.FINISHED and run)
        assert "ended unexpectedly. It continues from its last complete checkpoint." in it.told()
        assert "Resumed from step 3." in it.told()
    assert run.step == 8


@pytest.mark.usefixtures("quick_renewals")
def test_a_supervisor_frozen_beyond_its_lease_is_killed_with_its_trainer() -> None:
    with supervise(queue_run(**ENDLESS)) as it:
        it.until(lambda run: run.step > 2)
        freeze(it.run_id, it.process)
        (lost,) = eventually(reaper.lost_runs)
        assert reaper.recover(lost)
        assert (it.run.status, living(it.run_id)) == (Status.QUEUED, [])
        assert "did not renew its lease for 150 s although it was alive" in it.told()


@pytest.mark.usefixtures("quick_renewals", "preloading")
def test_a_preloaded_supervisor_takes_the_next_run_and_is_killed_with_its_trainer_when_it_freezes() -> None:
    starting.prepare()
    (ready,) = eventually(standing_ready)
    run_id = queue_run(**ENDLESS)
    starting.start_waiting()
    eventually(lambda: get(run_id).step > 2)
    assert holder(run_id) == ready
    freeze(run_id, ready)
    (lost,) = eventually(reaper.lost_runs)
    assert reaper.recover(lost)
    assert (processes.is_gone(ready), living(run_id), get(run_id).status) == (True, [], Status.QUEUED)
    starting.start_waiting()  # nothing is preloaded now
    eventually(lambda: get(run_id).step > 2 and get(run_id).attempt == 2)


@pytest.mark.usefixtures("quick_renewals", "started")
def test_a_supervisor_that_starts_slower_than_its_lease_costs_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[psutil.Process] = []

    def start_frozen(*arguments: Any, **options: Any) -> Forked:
        with db.write() as session:
            session.connection()  # locks the database: the supervisor cannot take the run over before it is frozen
            begun = nursery().start_detached(*arguments, **options)
            begun.process.send_signal(signal.SIGSTOP)
            eventually(lambda: begun.process.status() == psutil.STATUS_STOPPED)
        frozen.append(begun.process)
        return begun

    monkeypatch.setattr(processes, "start_detached", start_frozen)
    run_id = queue_run(steps=1)
    starting.start_waiting()
    for _ in range(2):
        expire(run_id)
        reaper.run_round()
        eventually(lambda: (get(run_id).expires_at or 0) > 1)
    frozen[0].send_signal(signal.SIGCONT)
    ended = eventually(lambda: (run := get(run_id)).status.ended and run)
    assert (ended.status, ended.attempt) == (Status.FINISHED, 1)


def test_an_expired_lease_of_a_living_supervisor_does_not_count_as_an_attempt(database: str) -> None:
    with subprocess.Popen(["sleep", "infinity"]) as late:
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
    with subprocess.Popen(["sleep", "infinity"]) as late:
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
        RUN.adopt(session, RUN.key_of(run), holder=str(me()), lease_seconds=100, phase="starting")
    assert not reaper.recover(run)
    assert get(run.id).status is Status.RUNNING


def test_a_run_that_is_taken_over_while_it_is_recovered_keeps_its_new_holder(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = claimed(DEAD)
    engine = reaper.engine_of(run)
    late = str(Identity(hostname(), os.getpid(), "1.1.1"))
    monkeypatch.setattr(engine, "cancel", lambda run: adopt(run, owner=late, lease_seconds=60))
    monkeypatch.setattr(reaper, "engine_of", lambda _: engine)
    assert not reaper.recover(run)
    assert (get(run.id).status, get(run.id).holder, outcomes(run.id)) == (Status.RUNNING, late, [""])


def test_a_run_of_another_machine_is_not_recovered_before_its_lease_expires() -> None:
    claimed("elsewhere:7:1")
    assert reaper.lost_runs() == []


@pytest.mark.usefixtures("preloading")
def test_a_preloaded_supervisor_ends_with_its_worker() -> None:
    worker = os.fork()
    if worker == 0:
        try:
            starting.prepare()
            signal.pause()
        finally:
            os._exit(1)
    (ready,) = eventually(standing_ready)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    eventually(lambda: processes.is_gone(ready))


@pytest.mark.usefixtures("started")
def test_a_supervisor_that_fails_to_start_costs_an_attempt_and_the_queue_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LATHE_MAX_ATTEMPTS", "2")
    get_settings.cache_clear()
    broken, whole = queue_run(steps=1), queue_run(steps=1)
    start, start_truly = processes.start_detached, START_DETACHED

    def start_detached(argv: list[str], **options: Any) -> object:
        return start_truly(["/nonexistent"], **options) if broken in argv else start(argv, **options)

    monkeypatch.setattr(processes, "start_detached", start_detached)

    def both_ended() -> bool:
        reaper.run_round()
        return get(broken).status.ended and get(whole).status.ended

    eventually(both_ended)
    assert (get(broken).status, get(whole).status) == (Status.FAILED, Status.FINISHED)


def test_an_expired_claim_does_not_kill_a_living_worker() -> None:
    with subprocess.Popen(["sleep", "infinity"]) as worker:
        run = claimed(str(Identity.of(worker.pid)))
        expire(run.id)
        assert reaper.recover(run)
        assert (get(run.id).status, worker.poll()) == (Status.QUEUED, None)
        worker.kill()


@pytest.mark.usefixtures("started")
def test_runs_train_in_the_order_of_the_queue() -> None:
    ids = [queue_run(steps=2) for _ in range(3)]
    rounds = reaper.Reaper()
    rounds.start()
    try:
        eventually(lambda: all(get(run_id).status is Status.FINISHED for run_id in ids))
    finally:
        rounds.stop()
        rounds.join()
    times = [(get(run_id).started_at, get(run_id).finished_at) for run_id in ids]
    assert times == sorted(times)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(times))


class Silent(SlurmEngine):
    """Slurm, whose controller does not answer until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = threading.Event(), threading.Event()

    def submit_waiting(self) -> list[Run]:
        self.asked.set()
        self.answer.wait()
        return []


@pytest.mark.usefixtures("started")
def test_while_slurm_does_not_answer_all_other_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, engine = Silent(), registry.engine
    monkeypatch.setattr(registry, "engine", lambda name: silent if name is EngineName.SLURM else engine(name))
    monkeypatch.setenv("LATHE_ENGINES", "local,slurm")
    get_settings.cache_clear()
    rounds = reaper.Reaper()
    monkeypatch.setattr(tasks, "_reaper", rounds)
    rounds.start()
    try:
        eventually(silent.asked.is_set)
        found = queue_run(steps=1)
        eventually(lambda: get(found).status is Status.FINISHED)
        told = queue_run(steps=1)
        tasks.start_run(told)  # a message is handled, too
        eventually(lambda: get(told).status is Status.FINISHED)
        silent.asked.clear()
        silent.answer.set()
        tasks.start_run("another")  # wakes the engine
        eventually(silent.asked.is_set)
    finally:
        silent.answer.set()
        rounds.stop()
        rounds.join()

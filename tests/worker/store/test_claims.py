"""Claims and leases of runs, and older attempts."""

import multiprocessing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing.synchronize import Barrier

import pytest
from held_runs import GPU, OWNER, attempts_of, claim, leased, now_of, renew, requeue
from sqlalchemy.exc import OperationalError
from sqlmodel import select

from worker.store import claims
from worker.store import database as db
from worker.store.tables import Attempt, Run, Status
from worker.store.work import RUN, LeaseLost

# Claiming


def test_a_claim_takes_the_run_and_its_devices(database, new_run):
    run = new_run()
    claimed = claim(run.id, devices=["node1/cuda:1", GPU])
    assert claimed is not None
    assert (claimed.status, claimed.attempt, claimed.holder) == (Status.RUNNING, 1, OWNER)
    assert claimed.started_at is not None and claimed.expires_at > claimed.started_at + 50
    assert leased() == [GPU, "node1/cuda:1"]
    (attempt,) = attempts_of(run)
    assert (attempt.number, attempt.host, attempt.devices) == (1, "node1", ["node1/cuda:1", GPU])


def test_a_run_can_be_claimed_only_once(database, new_run):
    run = new_run()
    assert claim(run.id) is not None
    assert claim(run.id, devices=["node2/cuda:0"]) is None
    assert leased() == [GPU]


def test_a_claim_of_a_device_in_use_changes_nothing(database, new_run):
    first, second = new_run(), new_run()
    claim(first.id)
    assert claim(second.id, devices=["node1/cuda:1", GPU]) is None
    assert leased() == [GPU]
    assert (now_of(second).status, now_of(second).attempt, attempts_of(second)) == (Status.QUEUED, 0, [])


def _claim_all(barrier: Barrier, run_ids: list[str], name: str) -> None:
    """Tries to claim each run five times, with its own device; if the database is busy, the next try is soon, as in a worker."""
    barrier.wait()
    for run_id in run_ids * 5:
        with suppress(OperationalError):
            claim(run_id, owner=f"{name}:1:1", devices=[f"{name}/cpu-{run_id}"])
    db.dispose()


def test_only_one_of_eight_workers_claims_a_run(database, new_run):
    waiting = [new_run().id for _ in range(2)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    workers = [context.Process(target=_claim_all, args=(barrier, waiting, f"node{number}")) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 8
    with db.read() as session:
        rows = session.exec(select(Run)).all()
        attempts = session.exec(select(Attempt)).all()
    assert [run.attempt for run in rows] == [1, 1]
    assert Counter(attempt.run_id for attempt in attempts) == dict.fromkeys(waiting, 1)
    assert leased() == sorted(f"{run.holder.split(':')[0]}/cpu-{run.id}" for run in rows)


def _take(barrier: Barrier, run_id: str) -> None:
    barrier.wait()
    claim(run_id, devices=["node1/cuda:1", GPU])
    db.dispose()


def test_only_one_of_several_runs_gets_a_device(database, new_run):
    waiting = [new_run().id for _ in range(6)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(6)
    takers = [context.Process(target=_take, args=(barrier, run_id)) for run_id in waiting]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    with db.read() as session:
        assert Counter(run.status for run in session.exec(select(Run))) == {Status.RUNNING: 1, Status.QUEUED: 5}
    assert leased() == [GPU, "node1/cuda:1"]


# Holding


def test_a_supervisor_takes_over_the_claim_of_its_worker(database, new_run):
    run = claim(new_run().id, owner="node1:1:1")
    with db.write() as session:
        assert RUN.adopt(session, (run.id, 1), holder=OWNER, lease_seconds=60)
    assert renew(run) is None
    with pytest.raises(LeaseLost):
        renew(run, owner="node1:1:1")


def test_an_ended_attempt_cannot_be_taken_over(database, new_run):
    run = claim(new_run().id)
    requeue(run)
    with db.write() as session:
        assert not RUN.adopt(session, (run.id, 1), holder=OWNER, lease_seconds=60)


def test_renewing_extends_the_lease(database, new_run):
    run = claim(new_run().id, lease_seconds=1)
    renew(run, lease_seconds=100)
    assert now_of(run).expires_at > run.expires_at + 90


def test_a_lease_with_a_new_owner_cannot_be_renewed(database, new_run):
    old = claim(new_run().id)
    requeue(old)
    claim(old.id)
    with pytest.raises(LeaseLost, match=f"Run {old.id}, attempt 1, is no longer held by {OWNER}"):
        renew(old)


def test_an_expired_lease_can_be_revoked(database, new_run):
    held, lost = claim(new_run().id), claim(new_run().id, devices=["node1/cuda:1"], lease_seconds=-1)
    with db.write() as session:
        (expired,) = [run for run, expired in RUN.rows(session) if expired]
        assert expired.id == lost.id
        assert RUN.seize(session, held, holder="node2:1:1", lease_seconds=60, expired=True) is None
        assert RUN.seize(session, lost, holder="node2:1:1", lease_seconds=60, expired=True)
        assert claims.requeue(session=session, run_id=lost.id, attempt=1, reason="its lease ran out", outcome="lost")
    assert now_of(lost).status is Status.QUEUED
    assert leased() == [GPU]
    assert now_of(held).status is Status.RUNNING


def test_a_lease_cannot_be_renewed_while_its_run_is_recovered(database, new_run):
    run = claim(new_run().id, lease_seconds=-1)
    with ThreadPoolExecutor(1) as pool:
        with db.write() as session:
            assert RUN.seize(session, run, holder="node2:1:1", lease_seconds=60, expired=True)
            late = pool.submit(renew, run)
            wait([late], timeout=0.3)  # it waits for this session or comes after it; both are refused
            claims.requeue(session=session, run_id=run.id, attempt=1, reason="its lease ran out", outcome="lost")
        assert isinstance(late.exception(), LeaseLost)

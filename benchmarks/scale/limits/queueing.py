"""The queue: runs submitted a second, looks at a long queue, and many workers that claim at once."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sqlmodel import col, delete, select, update

from benchmarks.scale.limits.processes import at_once
from training.config.run_config import RunConfig
from worker.engines.local import starting
from worker.machine import free_devices
from worker.store import claims, database, run_list, runs, waiting
from worker.store.tables import Attempt, Run, Status

_LEASE_SECONDS = 600.0
_PAGE = 50  # rows of the page Runs


@dataclass(frozen=True)
class Queue:
    """Of a queue of some length: seconds of a worker's look at it, of a claim, and of the query of the page Runs."""

    look: float
    claim: float
    page: float


def submitted(count: int) -> float:
    """Runs queued a second by one process, each in a transaction of its own as a request makes it."""
    config = RunConfig(model="gpt2", data="alpaca.jsonl")
    began = time.perf_counter()
    for _ in range(count):
        with database.write() as session:
            runs.create(session=session, config=config, dataset_id=None)
    return count / (time.perf_counter() - began)


def fill(count: int) -> None:
    """Makes the queue `count` runs long."""
    with database.write() as session:
        config = RunConfig(model="gpt2", data="alpaca.jsonl").model_dump(mode="json")
        missing, now = (
            count - run_list.count(session=session, query=run_list.Query(Status.QUEUED)),
            database.now(session=session),
        )
        times = [now + number / 256 for number in range(missing)]
        rows = [
            Run(id=runs.new_id(when), name="waits", config=config, created_at=when, queued_at=when, position=when)
            for when in times
        ]
        session.add_all(rows)


def empty() -> None:
    """Deletes all runs."""
    with database.write() as session:
        session.exec(delete(Run))


def looks() -> Queue:
    """How long one worker needs with the queue as it is. The run that it claims is returned to the queue."""
    return Queue(_timed(_look), _claim_seconds(), _timed(_page))


def _look() -> None:
    """Chooses the next run for a free device, as worker/engines/local/starting.py does before each claim."""
    with database.read() as session:
        free, now = free_devices.free(session=session), database.now(session=session)
        startable = waiting.startable_one_by_one(session=session)
        assert starting.next_run(startable, free or ["node/cuda:0"], ["node/cuda:0"], now, 600)


def _claim_seconds() -> float:
    with database.read() as session:
        run_id = session.exec(select(Run.id).where(Run.status == Status.QUEUED).limit(1)).one()
    began = time.perf_counter()
    with database.write() as session:
        run = claims.claim(
            session=session, run_id=run_id, owner="node:1:1", devices=["node/cuda:0"], lease_seconds=_LEASE_SECONDS
        )
    taken = time.perf_counter() - began
    assert run is not None
    with database.write() as session:
        claims.requeue(session=session, run_id=run.id, attempt=run.attempt, reason="")
    return taken


def _page() -> None:
    with database.read() as session:
        run_list.listing(session=session, query=run_list.Query(limit=_PAGE))
        run_list.count(session=session)


def claimed_at_once(processes: int, count: int) -> tuple[float, int]:
    """Lets processes claim the same `count` runs. Returns claims a second of all together, and how many runs were taken twice."""
    with database.read() as session:
        ids = [run.id for run in waiting.waiting(session=session)][:count]
    found = at_once(processes, _claim_all, ids)
    taken = Counter(run_id for mine, _, _ in found for run_id in mine)
    seconds = max(end for _, _, end in found) - min(begin for _, begin, _ in found)
    with database.read() as session:
        attempts = Counter(session.exec(select(Attempt.run_id).where(col(Attempt.run_id).in_(ids))))
    doubled = sum(count > 1 for count in taken.values()) + sum(number > 1 for number in attempts.values())
    lost = set(ids) - set(taken)
    assert not lost, f"{len(lost)} runs were not claimed by anybody"
    with database.write() as session:
        values = claims.NOT_HELD | {"status": Status.QUEUED, "attempt": 0, "holder": None}
        session.exec(delete(Attempt).where(col(Attempt.run_id).in_(ids)))
        session.exec(update(Run).where(col(Run.id).in_(ids)).values(**values))
    return len(ids) / seconds, doubled


def _claim_all(number: int, ids: list[str]) -> tuple[list[str], float, float]:
    """Claims what others have not taken, all in the same order; each worker has a device of its own, free for every run."""
    mine, begin = [], time.time()
    for run_id in ids:
        with database.write() as session:
            owner, device = f"node{number}:1:1", f"node{number}/{run_id}"
            if claims.claim(
                session=session, run_id=run_id, owner=owner, devices=[device], lease_seconds=_LEASE_SECONDS
            ):
                mine.append(run_id)
    return mine, begin, time.time()


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began

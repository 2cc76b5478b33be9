"""The further machines of a run: claimed once, held by a lease, and never left training beside the next attempt."""

import pytest
from sqlmodel import delete, update

from worker.store import claims, nodes
from worker.store import database as db
from worker.store.tables import Run, RunNode
from worker.store.work import NODE, LeaseLost

ALPHA, BETA = "alpha:1:1", "beta:2:2"


@pytest.fixture
def running(database, new_run) -> Run:
    """A run on alpha and beta, in its first attempt."""
    return started(new_run().id)


def started(run_id: str) -> Run | None:
    with db.write() as session:
        devices = ["alpha/cpu", "beta/cpu"]
        run = claims.claim(session=session, run_id=run_id, owner=ALPHA, devices=devices, lease_seconds=60)
        if run is not None:
            nodes.place(session=session, run_id=run_id, attempt=run.attempt, devices_of={"beta": ["beta/cpu"]})
    return run


def requeued(run: Run) -> None:
    with db.write() as session:
        assert claims.requeue(session=session, run_id=run.id, attempt=run.attempt, reason="lost", outcome="lost")


def claimed(node: RunNode, owner: str = BETA) -> bool:
    with db.write() as session:
        return nodes.claim(session=session, node=node, owner=owner, lease_seconds=60)


def renewed(node: RunNode, owner: str = BETA) -> str:
    with db.write() as session:
        return NODE.renew(session, node.key, holder=owner, lease_seconds=60).request


def placed_on_beta() -> list[RunNode]:
    with db.read() as session:
        return nodes.unclaimed(session=session, host="beta")


def expire(node: RunNode) -> None:
    with db.write() as session:
        session.exec(update(RunNode).values(expires_at=db.clock() - 1))


def test_a_part_is_claimed_once_and_only_on_its_host(running: Run) -> None:
    (node,) = placed_on_beta()
    with db.read() as session:
        assert nodes.unclaimed(session=session, host="alpha") == []
    assert claimed(node)
    assert not claimed(node, "beta:3:3")
    assert placed_on_beta() == []


def test_the_holder_learns_what_it_is_asked(running: Run) -> None:
    (node,) = placed_on_beta()
    claimed(node)
    assert renewed(node) == ""
    for request in (nodes.STOP, nodes.KILL, nodes.STOP):  # the last one comes too late
        with db.write() as session:
            nodes.ask(session=session, run_id=running.id, attempt=1, request=request)
    assert renewed(node) == nodes.KILL


def test_a_holder_whose_attempt_has_ended_is_told_to_end(running: Run) -> None:
    (node,) = placed_on_beta()
    claimed(node)
    requeued(running)
    with pytest.raises(LeaseLost):
        renewed(node)


def test_a_part_of_an_ended_attempt_cannot_be_claimed(running: Run) -> None:
    (node,) = placed_on_beta()
    requeued(running)
    assert not claimed(node)


def test_the_run_starts_again_only_after_its_parts_have_ended(running: Run) -> None:
    (node,) = placed_on_beta()
    claimed(node)
    requeued(running)
    assert started(running.id) is None
    with db.write() as session:
        assert nodes.devices_in_use(session=session) == {"beta/cpu"}
        nodes.end(session=session, node=node, exit_code=None)
        assert nodes.devices_in_use(session=session) == set()
    again = started(running.id)
    assert again is not None and again.attempt == 2


def test_a_lost_machine_does_not_hold_the_run_for_longer_than_its_lease(running: Run) -> None:
    (node,) = placed_on_beta()
    claimed(node)
    requeued(running)
    expire(node)
    with db.read() as session:
        assert nodes.lost_hosts(session=session) == {"beta"}
    assert started(running.id) is not None


def test_parts_of_a_deleted_run_are_deleted(running: Run) -> None:
    with db.write() as session:
        session.exec(delete(Run).where(Run.id == running.id))
    with db.read() as session:
        assert session.get(RunNode, (running.id, 1, 1)) is None

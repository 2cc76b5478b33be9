"""Reports of machines, and the leases of their devices, on both engines."""

import pytest
from held_runs import claim
from machines import machine, seen_ago

from worker.store import database as db
from worker.store import machines
from worker.store.machines import MachineNotFound, MachineReports


def listed():
    with db.read() as session:
        return machines.listing(session=session)


def test_a_later_report_replaces_the_earlier_and_keeps_when_the_machine_was_first_seen(database):
    machine("node1", load=1.0)
    (first,) = listed()
    machine("node1", load=2.0)
    (second,) = listed()
    assert (first.load, second.load) == (1.0, 2.0)
    assert first.first_seen == second.first_seen <= first.last_seen <= second.last_seen


def test_a_machine_is_stale_a_minute_after_its_last_report(database):
    machine("node1")
    (one,) = listed()
    assert machines.is_fresh(one, one.last_seen + 60)
    assert not machines.is_fresh(one, one.last_seen + 61)


def test_only_a_machine_that_no_longer_reports_can_be_removed(database):
    machine("node1")
    with pytest.raises(MachineReports, match="has a running worker"), db.write() as session:
        machines.remove(session=session, name="node1")
    seen_ago("node1", 200)
    with db.write() as session:
        machines.remove(session=session, name="node1")
    assert listed() == []
    with pytest.raises(MachineNotFound), db.write() as session:
        machines.remove(session=session, name="node1")


def test_a_worker_that_stops_marks_only_its_own_report(database):
    machine("node1", worker="node1:1:a")
    with db.write() as session:
        machines.leave(session=session, name="node1", worker="node1:2:b")
    assert [one.draining for one in listed()] == [False]
    with db.write() as session:
        machines.leave(session=session, name="node1", worker="node1:1:a")
    assert [one.draining for one in listed()] == [True]


def test_leases_name_the_run_that_holds_each_device(database, new_run):
    run = new_run(name="mine")
    claim(run.id, devices=("node1/cuda:1", "node1/cuda:0"))
    with db.read() as session:
        found = machines.leases(session=session)
        now = db.now(session=session)
    assert [(lease.device, lease.run_id, lease.name) for lease in found] == [
        ("node1/cuda:0", run.id, "mine"),
        ("node1/cuda:1", run.id, "mine"),
    ]
    assert 0 < found[0].expires_at - now <= 60


def test_the_queue_names_the_run_that_has_waited_longest(database, new_run):
    first, second, running = new_run(name="first"), new_run(name="second"), new_run()
    claim(running.id)
    with db.read() as session:
        queue = machines.queue(session=session)
    assert (queue.waiting, queue.running, queue.oldest) == (2, 1, (first.id, "first", first.queued_at))
    assert second.queued_at >= first.queued_at

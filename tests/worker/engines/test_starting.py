"""Which waiting run this machine starts next: none whose owner may use no more devices."""

from machines import gpu, machine
from played_run import PlayedRun
from sqlmodel import update

from worker.engines.local import starting
from worker.machine import processes
from worker.machine.process_identity import hostname
from worker.store import accounts, database, nodes
from worker.store.tables import Run


def run_of(owner, **settings):
    run = PlayedRun(owner, **settings)
    with database.write() as session:
        session.exec(update(Run).where(Run.id == run.id).values(owner=owner))
    return run


def limit(devices):
    with database.write() as session:
        accounts.limit(session=session, name="alice", limits={"max_devices": devices})


def test_a_run_whose_owner_may_use_no_more_devices_is_passed_over(home):
    with database.write() as session:
        accounts.add(session=session, name="alice")
    run_of("alice").claim("elsewhere/cuda:0")
    own, other = run_of("alice"), run_of("bob")
    assert starting._candidate()[0].id == own.id
    limit(1)
    run, chosen = starting._candidate()
    assert (run.id, chosen) == (other.id, [f"{hostname()}/cpu"])
    assert starting._claim(run, chosen).holder
    other.attempt = 1
    other.end()
    assert starting._candidate() is None  # a run that is offered and not claimed would be offered again and again
    limit(2)
    assert starting._candidate()[0].id == own.id


def test_what_a_run_takes_is_counted_on_the_machine_that_starts_it(home):
    with database.write() as session:
        accounts.add(session=session, name="alice", limits={"max_devices": 1})
    machine("elsewhere", devices=[gpu("elsewhere", number) for number in range(8)])
    many = run_of("alice", num_processes=8, strategy="ddp")
    run, chosen = starting._candidate()
    assert (run.id, chosen) == (many.id, [f"{hostname()}/cpu"])
    assert starting._claim(run, chosen)


def test_a_part_whose_process_cannot_be_started_ends_with_the_reason(home, monkeypatch):
    run = run_of("bob", num_processes=2, num_machines=2, strategy="ddp").claim("elsewhere/cpu", f"{hostname()}/cpu")
    with database.write() as session:
        nodes.place(session=session, run_id=run.id, attempt=1, devices_of={hostname(): [f"{hostname()}/cpu"]})

    def cannot_start(*_, **__):
        raise OSError

    monkeypatch.setattr(processes, "start_detached", cannot_start)
    for _ in range(2):
        starting.start_nodes()
    with database.read() as session:
        (node,) = nodes.of_attempt(session=session, run_id=run.id, attempt=1)
    assert (node.ended_at is not None, node.problem) == (True, "Its process ended unexpectedly.")

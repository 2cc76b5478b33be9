"""Devices for runs on several machines: of all of them, or none."""

import pytest
from machines import gpu, machine, seen_ago

from training.config.run_config import RunConfig
from worker.engines.local import placement
from worker.machine.process_identity import hostname
from worker.store import claims, machines, nodes, runs
from worker.store import database as db
from worker.store.tables import Run

pytestmark = pytest.mark.usefixtures("database")

HERE = [f"{hostname()}/cuda:0", f"{hostname()}/cuda:1"]
TWO = {"strategy": "ddp", "num_processes": 4, "num_machines": 2, "gradient_accumulation_steps": 3}


def queued(**settings: object) -> Run:
    with db.write() as session:
        config = RunConfig.model_validate({"model": "m", "data": "d"} | TWO | settings)
        return runs.create(session=session, config=config, dataset_id=None, name="run")


def lost(run: Run) -> Run:
    """The run after a first attempt that lost a machine."""
    with db.write() as session:
        claims.claim(session=session, run_id=run.id, owner="a:1:1", devices=["a/cuda:0"], lease_seconds=60)
        claims.requeue(session=session, run_id=run.id, attempt=1, reason="lost")
        return runs.get(session=session, run_id=run.id)


def place(run: Run) -> list[str] | None:
    with db.read() as session:
        return placement.place(session=session, run=run, here=HERE)


def host(name: str, gpus: int = 2, **values: object) -> None:
    machine(name, devices=[gpu(name, index) for index in range(gpus)], **values)


def test_a_run_gets_the_devices_of_all_its_machines_its_own_first() -> None:
    host("b"), host("c")
    assert place(queued()) == [*HERE, "b/cuda:0", "b/cuda:1"]


@pytest.mark.parametrize(
    "other", [{"gpus": 1}, {"draining": True}], ids=["a machine with too few GPUs", "a draining machine"]
)
def test_other_machines_do_not_count(other: dict[str, object]) -> None:
    host("b", **other)
    assert place(queued()) is None


def test_a_machine_without_gpus_does_not_count() -> None:
    machine("b")
    assert place(queued()) is None


def test_a_machine_that_does_not_report_does_not_count() -> None:
    host("b")
    seen_ago("b", 120)
    assert place(queued()) is None


def test_leased_devices_are_not_taken() -> None:
    host("b", gpus=3)
    other = queued(num_processes=2, num_machines=1)
    with db.write() as session:
        claims.claim(session=session, run_id=other.id, owner="b:1:1", devices=["b/cuda:0"], lease_seconds=60)
    assert place(queued()) == [*HERE, "b/cuda:1", "b/cuda:2"]


def test_with_min_machines_a_run_continues_on_those_that_are_left_with_the_same_global_batch() -> None:
    run = lost(queued(min_machines=1))
    assert place(run) == HERE
    assert place(lost(queued())) is None
    changed = placement.changes(RunConfig.model_validate(run.config), 1)
    assert changed == {"num_machines": 1, "num_processes": 2, "gradient_accumulation_steps": 6}


def test_a_run_with_min_machines_starts_on_all_its_machines() -> None:
    assert place(queued(min_machines=1)) is None


def test_a_run_with_min_machines_waits_for_machines_that_are_only_busy() -> None:
    host("b")
    other = queued(num_processes=2, num_machines=1)
    with db.write() as session:
        claims.claim(session=session, run_id=other.id, owner="b:1:1", devices=["b/cuda:0"], lease_seconds=60)
    assert place(lost(queued(min_machines=1))) is None


def test_a_machine_that_lost_contact_is_not_taken_until_its_worker_is_back() -> None:
    host("b")
    run = queued()
    with db.write() as session:
        devices = [*HERE, "b/cuda:0", "b/cuda:1"]
        claims.claim(session=session, run_id=run.id, owner="a:1:1", devices=devices, lease_seconds=60)
        nodes.place(session=session, run_id=run.id, attempt=1, devices_of={"b": devices[2:]})
        (node,) = nodes.of_attempt(session=session, run_id=run.id, attempt=1)
        nodes.claim(session=session, node=node, owner="b:2:2", lease_seconds=-1)
        claims.requeue(session=session, run_id=run.id, attempt=1, reason="lost")
    assert place(run) is None
    with db.write() as session:
        nodes.end(session=session, node=node, exit_code=None)
    assert place(run) is not None


def test_two_processes_become_one_device_without_ddp() -> None:
    config = RunConfig.model_validate({"model": "m", "data": "d"} | TWO | {"num_processes": 2})
    assert placement.changes(config, 1) == {
        "num_machines": 1,
        "num_processes": 1,
        "gradient_accumulation_steps": 6,
        "strategy": "single",
    }


def test_a_global_batch_that_cannot_be_kept_is_not_changed() -> None:
    config = RunConfig.model_validate({"model": "m", "data": "d"} | TWO | {"num_machines": 4, "num_processes": 8})
    assert placement.changes(config, 2) is not None
    assert placement.changes(config.model_copy(update={"gradient_accumulation_steps": 1}), 3) is None


def test_the_reason_to_wait_counts_the_machines() -> None:
    host("b")
    with db.read() as session:
        text = placement.reason_to_wait(session=session, run=queued())
    assert text == "Waits for 2 machines with 2 free devices each: 1 is free, of 1 that report as many devices."


def test_a_machine_that_is_put_aside_is_not_taken_and_the_reason_to_wait_names_it() -> None:
    host("b"), host("c")
    with db.write() as session:
        machines.cordon(session=session, host="b", reason="Lost contact.")
    assert place(queued()) == [*HERE, "c/cuda:0", "c/cuda:1"]
    with db.read() as session:
        text = placement.reason_to_wait(session=session, run=queued())
    assert text.endswith("Put aside after failures: b (lathe machines use NAME).")


def test_a_machine_that_is_put_aside_starts_no_run_on_several() -> None:
    host("b")
    with db.write() as session:
        machines.cordon(session=session, host=hostname(), reason="Lost contact.")
    assert place(queued()) is None

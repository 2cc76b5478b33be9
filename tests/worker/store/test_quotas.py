"""What accounts may use at once: devices and waiting work."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest
from held_runs import GPU, claim, finish, leased, now_of, requeue
from machines import gpu, machine
from patience import eventually
from sqlalchemy import event, text

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from worker.store import accounts, builds, claims, evaluations, jobs, quotas, runs, served_models, sight, waiting
from worker.store import database as db
from worker.store.quotas import DeviceQuotas
from worker.store.tables import Build, Evaluation, Run, ServedModel, ServedState, Status
from worker.store.tables.held import owned_work

OTHER_GPU, THIRD_GPU = "node1/cuda:1", "node1/cuda:2"


@pytest.fixture
def alice(database):
    """An account that may use two devices at once, and have three waiting runs, on a machine with eight GPUs."""
    with db.write() as session:
        accounts.add(session=session, name="alice", limits={"max_devices": 2, "max_waiting": 3})
    machine("node1", devices=[gpu("node1", number) for number in range(8)])


@pytest.fixture
def queued(alice):
    """Queues a run of alice, or of another user."""

    def queue(owner="alice", **settings):
        config = RunConfig.model_validate({"model": "models/tiny", "data": "rows.jsonl"} | settings)
        with db.write() as session:
            return runs.create(session=session, config=config, dataset_id=None, owner=owner)

    return queue


def used():
    with db.read() as session:
        use = quotas.used(session=session, owners=["alice"])["alice"]
    return use.devices, use.waiting


def startable():
    with db.read() as session:
        return [run.id for run in waiting.startable(session=session)]


def reason(run):
    with db.read_everything() as session:
        found = DeviceQuotas.read(session)
    return found.reason(now_of(run))


def evaluation(run, owner="alice"):
    with db.write() as session:
        return evaluations.create(session=session, run_id=run.id, request={}, owner=owner)


def claim_evaluation(item, device):
    with db.write() as session:
        return evaluations.claim(
            session=session, evaluation_id=item.id, owner="node1:1:1", device=device, lease_seconds=60
        )


def serve(device, owner="alice"):
    with db.write() as session:
        served = served_models.create(session=session, models=["a"], owner=owner)
        claimed = served_models.claim(
            session=session, served_id=served.id, holder="node1:1:1", device=device, lease_seconds=60
        )
        return served.id, claimed


def test_an_account_gets_no_more_devices_than_it_may_use(queued):
    first, second, third = queued(), queued(), queued()
    assert claim(first.id) and claim(second.id, devices=[OTHER_GPU])
    assert claim(third.id, devices=[THIRD_GPU]) is None
    assert (now_of(third).status, now_of(third).attempt, leased()) == (Status.QUEUED, 0, [GPU, OTHER_GPU])
    finish(now_of(first))
    assert claim(third.id, devices=[THIRD_GPU])
    assert used() == (2, 0)


def test_a_run_over_its_quota_is_not_offered_and_holds_up_no_other(queued):
    claim(queued(num_processes=2).id, devices=[GPU, OTHER_GPU])
    over, other, own = queued(), queued("bob"), queued("local")
    assert startable() == [other.id, own.id]
    assert reason(over) == "alice uses 2 of the 2 devices that alice may use at once."
    assert (reason(other), reason(own)) == ("", "")
    assert claim(other.id, devices=[THIRD_GPU])


def test_a_run_that_needs_more_than_is_left_waits_and_a_smaller_one_does_not(queued):
    claim(queued().id)
    large, small = queued(num_processes=2), queued()
    assert startable() == [small.id]
    assert reason(large) == "alice uses 1 of the 2 devices that alice may use at once; this run needs 2."
    assert claim(large.id, devices=[OTHER_GPU, THIRD_GPU]) is None


def test_on_a_machine_without_gpus_a_run_takes_one_device(queued):
    machine("node1")
    many = queued(num_processes=8)
    assert startable() == [many.id]
    assert claim(many.id, devices=["node1/cpu"])
    assert used() == (1, 0)


def test_evaluations_and_served_models_take_devices_of_the_quota(queued):
    run = queued("bob")
    item, further = evaluation(run), evaluation(run)
    assert claim_evaluation(item, GPU)
    served_id, claimed = serve(OTHER_GPU)
    assert claimed and used() == (2, 1)
    assert claim_evaluation(further, THIRD_GPU) is None
    with db.read() as session:
        assert evaluations.startable(session=session) == []
    assert claim(queued().id, devices=[THIRD_GPU]) is None
    with db.write() as session:
        served_models.finish(session=session, served_id=served_id, reason="its user ended it")
    assert claim_evaluation(further, THIRD_GPU)
    served_id, claimed = serve("node1/cuda:3")
    assert not claimed
    with db.read() as session:
        assert served_models.get(session=session, served_id=served_id).state is ServedState.WAITING
    assert serve(None)[1]  # on a CPU it takes no device
    assert used() == (2, 2)


def test_a_submitted_job_counts_with_its_processes_from_its_submission_to_its_end(queued):
    run, further = queued(num_processes=2, engine="slurm"), queued(engine="slurm")
    with db.write() as session:
        assert jobs.reserve(session=session, run=run, owner="node1:1:1")
        jobs.record(session=session, run=run, job_id="7", job={})
    assert used() == (2, 2)
    assert startable() == [run.id]  # a job of a run that may not start would be cancelled
    with db.write() as session:
        assert jobs.reserve(session=session, run=further, owner="node1:1:1") is None
    assert now_of(further).job_id is None
    with db.write() as session:
        job = {"owner": "node1:1:1", "devices": ["node1/slurm:7"], "lease_seconds": 60.0, "job_id": "7"}
        claimed = claims.claim(session=session, run_id=run.id, **job)
    assert claimed and used() == (2, 1)
    finish(claimed)
    assert used() == (0, 1)


def test_a_lowered_limit_ends_nothing_and_starts_nothing(queued):
    first, second = queued(), queued()
    claim(first.id)
    claim(second.id, devices=[OTHER_GPU])
    with db.write() as session:
        accounts.limit(session=session, name="alice", limits={"max_devices": 1})
    assert requeue(now_of(first))
    assert startable() == []
    assert reason(first) == "alice uses 1 of the 1 device that alice may use at once."
    with db.write() as session:
        accounts.limit(session=session, name="alice", limits={"max_devices": None})
    assert startable() == [first.id]


def test_who_sees_a_shared_run_is_not_told_what_else_its_owner_uses(queued):
    claim(queued(num_processes=2).id, devices=[GPU, OTHER_GPU])
    over = queued()
    with sight.everything():
        sight.limit_to("bob")
        with db.read_everything() as session:
            found = DeviceQuotas.read(session)
        assert found.reason(over) == "alice uses as many devices as alice may use at once."
        sight.limit_to("alice")
        assert "2 of the 2" in found.reason(over)


def test_more_waiting_runs_than_allowed_are_a_problem(queued):
    for _ in range(3):
        queued()
    with db.write() as session:
        assert quotas.waiting_problem(session=session, owner="alice") is None
        problem = quotas.waiting_problem(session=session, owner="alice", more=1)
    assert problem.message == "may have 3 waiting at once (runs, evaluations, builds and models), and would have 4."
    queued()
    with db.write() as session:
        assert quotas.waiting_problem(session=session, owner="alice") == problem
        assert quotas.waiting_problem(session=session, owner="bob") is None


def test_all_work_that_waits_counts_and_no_more_is_queued_than_allowed(queued):
    """One limit for every table of work with an owner: an account cannot queue one kind without end beside another."""
    run = queued()

    def build():
        with db.write() as session:
            builds.create(session=session, run_id=run.id, form=secrets.token_hex(4), owner="alice")

    def serve():
        with db.write() as session:
            served_models.create(session=session, models=[run.id], owner="alice")

    more = {Evaluation: lambda: evaluation(run), Build: build, ServedModel: serve}
    assert set(owned_work()) == {Run, *more}
    for number, queue in enumerate(more.values(), 2):
        if number == 4:
            with pytest.raises(ConfigError, match="would have 4"):
                queue()
        else:
            queue()
        assert used()[1] == min(number, 3)
    for queue in more.values():
        with pytest.raises(ConfigError, match="may have 3 waiting at once"):
            queue()
    evaluation(run, owner="bob")
    assert used() == (0, 3)


def _while_another_waits(database, first, second):
    """The result of `second` in a thread, which begins while the transaction of `first` is open."""
    with ThreadPoolExecutor(1) as pool:
        with db.write() as session:
            assert first(session)
            later = pool.submit(second)
            if database == "postgresql":
                eventually(lambda: later.done() or _someone_waits())
        return later.result()


def _someone_waits():
    with db.read() as session:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return session.execute(text(waits)).scalar_one() > 0


def test_two_claims_at_once_do_not_both_take_the_last_device(database, queued):
    claim(queued().id)
    first, second = queued(), queued()

    def take(session):
        return claims.claim(
            session=session, run_id=first.id, owner="node2:1:1", devices=["node2/cuda:0"], lease_seconds=60.0
        )

    assert _while_another_waits(database, take, lambda: claim(second.id, devices=[OTHER_GPU])) is None
    assert leased() == [GPU, "node2/cuda:0"]


def test_two_submissions_at_once_do_not_both_get_the_last_place(database, queued):
    for _ in range(2):
        queued()

    def add(session):
        config = RunConfig(model="models/tiny", data="rows.jsonl")
        runs.create(session=session, config=config, dataset_id=None, owner="alice")
        return quotas.waiting_problem(session=session, owner="alice") is None

    def later():
        with db.write() as session:
            return add(session)

    assert _while_another_waits(database, add, later) is False


def test_accounts_without_limits_cost_one_query(database, new_run):
    with db.write() as session:
        accounts.add(session=session, name="bob")
    new_run()
    statements = []

    def count(_connection, _cursor, statement, *_):
        statements.extend([statement] if statement.startswith("SELECT") else [])

    event.listen(db.engine(), "before_cursor_execute", count)
    try:
        with db.read() as session:
            DeviceQuotas.read(session)
    finally:
        event.remove(db.engine(), "before_cursor_execute", count)
    assert len(statements) == 1 and "FROM account" in statements[0]

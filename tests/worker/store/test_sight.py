"""What a user sees, on both databases."""

import pytest
from sqlmodel import func, select

from training.config.run_config import RunConfig
from worker.store import database as db
from worker.store import evaluations, history, runs, shares, sight, sweeps
from worker.store.runs import RunNotFound
from worker.store.tables import Evaluation, LogLine, Run, Sample


@pytest.fixture
def made(database):
    """The runs of alice and bob, with an evaluation, a line of log and a sample each, by owner."""
    with db.write() as session:
        made = {
            owner: runs.create(
                session=session, config=RunConfig(model="m", data="d"), dataset_id=None, owner=owner, name=owner
            ).id
            for owner in ("alice", "bob")
        }
        for owner, run_id in made.items():
            evaluations.create(session=session, run_id=run_id, request={}, owner=owner)
            session.add(LogLine(run_id=run_id, attempt=1, time=0.0, text=owner))
            session.add(Sample(run_id=run_id, step=1, sample=0, group=0, row=0, tokens=1, ended=True, advantage=0.0))
    yield made
    sight.limit_to(None)


def seen():
    with db.read() as session:
        owners = session.exec(select(Run.owner).order_by(Run.owner)).all()
        counted = [
            session.exec(select(func.count()).select_from(table)).one() for table in (Run, Evaluation, LogLine, Sample)
        ]
    assert counted == [len(owners)] * 4
    return list(owners)


def test_every_query_is_limited_to_what_the_user_owns(made):
    assert seen() == ["alice", "bob"]
    sight.limit_to("bob")
    assert seen() == ["bob"]
    with db.read() as session, pytest.raises(RunNotFound):
        runs.get(session=session, run_id=made["alice"])
    with db.read() as session:
        assert sight.visible(session, list(made.values())) == {made["bob"]}
        assert session.get(Run, made["bob"])


def test_what_is_decided_for_all_sees_all(made):
    sight.limit_to("carol")
    assert seen() == []
    with db.read_everything() as session:
        assert len(session.exec(select(Run)).all()) == 2
    with db.write() as session:
        assert runs.get(session=session, run_id=made["alice"])
    assert seen() == []


@pytest.mark.parametrize("user", ["bob", sight.EVERYBODY])
def test_what_is_shared_is_seen_until_it_is_no_longer_shared(made, user):
    sight.limit_to("bob")
    with db.write() as session:
        shares.replace(session=session, kind="run", object_id=made["alice"], users=[user])
    assert seen() == ["alice", "bob"]
    with db.write() as session:
        shares.replace(session=session, kind="run", object_id=made["alice"], users=["carol"])
        assert shares.users(session=session, kind="run", object_id=made["alice"]) == ["carol"]
    assert seen() == ["bob"]


def test_a_shared_sweep_shows_its_runs(made):
    with db.write() as session:
        sweep = sweeps.create(session=session, name="s", owner="alice", spec={}, plan={})
        runs.get(session=session, run_id=made["alice"]).sweep_id = sweep.id
        shares.add(session=session, kind="sweep", object_id=sweep.id, user="bob")
        shares.add(session=session, kind="sweep", object_id=sweep.id, user="bob")
    sight.limit_to("bob")
    assert seen() == ["alice", "bob"]
    with db.read() as session:
        assert sweeps.get(session=session, sweep_id=sweep.id)
        assert not history.events(session=session, run_id=made["alice"], limit=10)
    with db.write() as session:
        shares.remove_user(session=session, user="bob")
    assert seen() == ["bob"]

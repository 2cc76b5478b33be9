"""Who may change the order of the queue."""

import pytest

from app.access import callers, changes
from app.access.callers import Caller
from app.access.permissions import Forbidden
from training.config.run_config import RunConfig
from worker import celery_app
from worker.store import database, runs, waiting
from worker.store.waiting import HIGH, LOW


@pytest.fixture
def queue(home, monkeypatch):
    """Queued runs of two users: a and c of Anna, b and d of Ben."""
    monkeypatch.setattr(celery_app, "notify", lambda run_id: False)
    config = RunConfig(model="m", data="d")
    queued = {}
    for number, (name, owner) in enumerate([("a", "anna"), ("b", "ben"), ("c", "anna"), ("d", "ben")]):
        with database.write() as session:
            run = runs.create(session=session, config=config, dataset_id=None, name=name, owner=owner)
            run.position = float(number)
            queued[name] = run.id
    callers.begin(Caller("anna", here=False))
    yield queued
    callers.begin(Caller())


def order():
    with database.read() as session:
        return "".join(run.name for run in waiting.waiting(session=session))


def test_a_user_moves_own_runs_behind_others_and_before_own_ones_only(queue):
    changes.move(queue["a"], None)
    assert order() == "bcda"
    with pytest.raises(Forbidden, match="would start before 'd' of ben"):
        changes.move(queue["a"], queue["c"])
    assert order() == "bcda"


def test_a_user_lowers_a_priority_and_cannot_raise_it_or_pause_the_queue(queue):
    changes.edit(queue["a"], priority=LOW)
    assert order() == "bcda"
    for refused in (lambda: changes.edit(queue["a"], priority=HIGH), lambda: changes.pause_queue(paused=True)):
        with pytest.raises(Forbidden, match="Ask an admin"):
            refused()


def test_a_user_changes_nothing_about_runs_of_others(queue):
    for change in (
        lambda: changes.move(queue["b"], None),
        lambda: changes.edit(queue["b"], held=True),
        lambda: changes.delete(queue["b"]),
    ):
        with pytest.raises(Forbidden, match="belongs to ben"):
            change()


def test_an_admin_moves_any_run_and_pauses_the_queue(queue):
    callers.begin(Caller("root", admin=True, here=False))
    changes.move(queue["d"], queue["a"])
    changes.pause_queue(paused=True)
    with database.read() as session:
        assert waiting.paused(session=session).paused_by == "root"
    assert order() == "dabc"

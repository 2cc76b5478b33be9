"""Who may change the order of the queue."""

import pytest
import web

from training.config.run_config import RunConfig
from worker import celery_app
from worker.store import database, runs, waiting


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
    return queued


@pytest.fixture
def anna(home):
    """The status and the message of the answer to a request of Anna's."""
    return requests_of(web.account("anna"))


def requests_of(headers):
    def send(method, path, body=None):
        answer = web.client().request(method, f"/api/{path}", json=body, headers=headers)
        return answer.status_code, "" if answer.is_success else "{message} {fix}".format(**answer.json()["error"])

    return send


def order():
    with database.read() as session:
        return "".join(run.name for run in waiting.waiting(session=session))


def test_a_user_moves_own_runs_behind_others_and_before_own_ones_only(queue, anna):
    assert anna("POST", f"runs/{queue['a']}/move", {"before": None}) == (200, "")
    assert order() == "bcda"
    status, message = anna("POST", f"runs/{queue['a']}/move", {"before": queue["c"]})
    assert status == 403 and "would start before 'd' of ben" in message
    assert order() == "bcda"


def test_a_user_lowers_a_priority_and_cannot_raise_it_or_pause_the_queue(queue, anna):
    assert anna("PATCH", f"runs/{queue['a']}", {"priority": "low"}) == (200, "")
    assert order() == "bcda"
    raised, paused = anna("PATCH", f"runs/{queue['a']}", {"priority": "high"}), anna("POST", "queue", {"paused": True})
    assert [status for status, _ in (raised, paused)] == [403, 403]
    assert all("Ask an admin" in message for _, message in (raised, paused))


def test_a_user_changes_nothing_about_runs_of_others(queue, anna):
    run = f"runs/{queue['b']}"
    changes = ("POST", f"{run}/move", {"before": None}), ("PATCH", run, {"held": True}), ("DELETE", run)
    for status, message in (anna(*change) for change in changes):
        assert status == 403 and "belongs to ben" in message
    assert order() == "abcd"


def test_an_admin_moves_any_run_and_pauses_the_queue(queue):
    root = requests_of(web.account("root", admin=True))
    assert root("POST", f"runs/{queue['d']}/move", {"before": queue["a"]}) == (200, "")
    assert root("POST", "queue", {"paused": True}) == (200, "")
    with database.read() as session:
        assert waiting.paused(session=session).paused_by == "root"
    assert order() == "dabc"

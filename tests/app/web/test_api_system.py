"""REST: the installation, freeing disk space, removing machines, and who may."""

import pytest
from machines import gpu, machine, seen_ago
from played_run import PlayedRun
from run_files import checkpoint, result, steps_of
from web import account, client

from worker.disk import background, usage
from worker.store import database, machines
from worker.store.tables import Run, Status


@pytest.fixture
def api(home, tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "model_caches", lambda: [tmp_path / "models"])
    yield client()
    background.disk().wait()


def stopped(owner):
    played = PlayedRun("sums").claim()
    checkpoint(played.id, 10)
    result(played.id)
    played.end(Status.STOPPED)
    with database.write() as session:
        session.get_one(Run, played.id).owner = owner
    return played


def free(api, *kinds, headers=None):
    response = api.post("/api/system/free", json={"kinds": kinds}, headers=headers)
    background.disk().wait()
    return response


def test_the_first_answer_has_no_disk_figures_but_everything_else(api):
    machine("node1", devices=[gpu("node1", 0)])
    first = api.get("/api/system").json()
    assert first["machines"][0]["devices"][0]["lease"] is None
    assert first["disk"]["kinds"] is None or first["disk"]["measuring"] is None
    background.disk().wait()
    assert api.get("/api/system").json()["disk"]["kinds"]["results"] == {"bytes": 0, "files": 0}


def test_freeing_starts_at_once_and_its_outcome_is_in_the_document(api):
    run = stopped("alice")
    response = free(api, "resumable_checkpoints")
    assert response.status_code == 202
    assert steps_of(run.id) == []
    outcome = api.get("/api/system").json()["disk"]["freeing"]
    assert (outcome["done"], outcome["total"], outcome["files"], outcome["problems"]) == (1, 1, 2, [])


@pytest.mark.parametrize("kinds", [["everything"], []])
def test_an_unknown_kind_is_refused(api, kinds):
    response = free(api, *kinds)
    assert (response.status_code, response.json()["error"]["field"]) == (422, "kinds")


def test_a_user_sees_and_frees_only_their_own_checkpoints(api):
    alice = account("alice")
    mine, other = stopped("alice"), stopped("bob")
    background.disk().measured()
    background.disk().wait()
    offered = api.get("/api/system", headers=alice).json()["disk"]["freeable"]
    assert {one["kind"]: one["files"] for one in offered}["resumable_checkpoints"] == 2
    assert free(api, "resumable_checkpoints", headers=alice).status_code == 202
    assert (steps_of(mine.id), steps_of(other.id)) == ([], [10])


@pytest.mark.parametrize("kind", ["tokens", "uploads", "unknown_runs"])
def test_what_belongs_to_the_installation_is_freed_only_by_admins(api, kind):
    alice, carol = account("alice"), account("carol", admin=True)
    refused = free(api, kind, headers=alice)
    assert (refused.status_code, refused.json()["error"]["fix"]) == (403, "Ask an admin.")
    assert free(api, kind, headers=carol).status_code == 202


def test_only_an_admin_removes_a_machine_that_no_longer_reports(api):
    alice, carol = account("alice"), account("carol", admin=True)
    machine("node1")
    remove = "/api/system/machines/node1/remove"
    assert api.post(remove, headers=alice).status_code == 403
    assert api.post(remove, headers=carol).json()["error"]["fix"] == "Stop its worker first."
    seen_ago("node1", 120)
    assert api.post(remove, headers=carol).json() == {"name": "node1", "removed": True}
    assert api.post(remove, headers=carol).status_code == 404


def test_only_an_admin_takes_back_a_machine_that_was_put_aside(api):
    alice, carol = account("alice"), account("carol", admin=True)
    with database.write() as session:
        machines.cordon(session=session, host="node1", reason="Lost contact.")
    (listed,) = api.get("/api/system", headers=carol).json()["put_aside"]
    assert (listed["host"], listed["reason"]) == ("node1", "Lost contact.")
    use = "/api/system/machines/node1/use"
    assert api.post(use, headers=alice).status_code == 403
    assert api.post(use, headers=carol).json() == {"name": "node1", "put_aside": False}
    assert api.post(use, headers=carol).status_code == 409

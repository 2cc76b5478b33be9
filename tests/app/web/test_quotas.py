"""Limits of accounts by REST, on pages and in commands: who changes them, and who sees what a run waits for."""

import pytest
from commands import answer, lathe
from machines import gpu, machine
from prepared import prepared_installation  # noqa: F401
from sqlmodel import update
from web import client

from worker.settings import get_settings
from worker.store import claims, database, sweeps
from worker.store.tables import Run

FULL = "alice uses 1 of the 1 device that alice may use at once."


@pytest.fixture
def waiting(prepared):
    """A run of alice that waits for her quota, since another one uses the only device that she may use; its id."""
    machine("node1", devices=[gpu("node1", 0), gpu("node1", 1)])
    with database.write() as session:
        session.exec(update(Run).values(owner="alice"))
        other = sweeps.runs_of(session=session, sweep_ids=[prepared.sweep])[0].id
        claim = {"owner": "node1:1:1", "devices": ["node1/cuda:0"], "lease_seconds": 60.0}
        assert claims.claim(session=session, run_id=other, **claim)
    lathe("user", "limit", "alice", "--max-devices", "1")
    return prepared.waiting


def as_(prepared, name):
    return {"Authorization": f"Bearer {prepared.tokens[name]}"}


def test_admins_limit_accounts_and_see_what_they_use(prepared):
    api, carol = client(), as_(prepared, "carol")
    changed = api.patch("/api/users/alice", json={"max_devices": 2, "max_waiting": 20}, headers=carol)
    assert changed.status_code == 200, changed.text
    again = api.patch("/api/users/alice", json={"max_waiting": None}, headers=carol).json()
    assert (again["max_devices"], again["max_waiting"]) == (2, None)
    (listed,) = [one for one in api.get("/api/users", headers=carol).json()["users"] if one["name"] == "alice"]
    assert listed == again and (listed["devices"], listed["waiting"]) == (0, 0)
    assert api.post("/api/users", json={"name": "dave", "max_waiting": 3}, headers=carol).status_code == 201
    assert api.patch("/api/users/alice", json={"max_devices": 9}, headers=as_(prepared, "alice")).status_code == 403
    assert api.patch("/api/users/eve", json={"max_devices": 9}, headers=carol).status_code == 404
    for wrong in (0, -1, 2**40, "many", 1.5):
        refused = api.patch("/api/users/alice", json={"max_devices": wrong}, headers=carol)
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "max_devices")


def test_what_a_run_waits_for_is_said_wherever_it_is_shown(prepared, waiting):
    api, alice = client(), as_(prepared, "alice")
    assert api.get(f"/api/runs/{waiting}", headers=alice).json()["queue"]["quota"] == FULL
    (row,) = [one for one in api.get("/api/queue", headers=alice).json()["waiting"] if one["id"] == waiting]
    assert (row["quota"], row["starts_in"]) == (FULL, None)
    for path in ("/", f"/run?id={waiting}"):
        assert FULL in api.get(path, headers=alice).text
    assert FULL in lathe("queue").stdout and FULL in lathe("show", waiting).stdout
    api.patch("/api/users/alice", json={"max_devices": None})
    assert answer("show", waiting)["queue"]["quota"] == ""


def test_with_visibility_own_another_account_learns_nothing_about_the_quota(prepared, waiting, monkeypatch):
    monkeypatch.setenv("LATHE_VISIBILITY", "own")
    get_settings.cache_clear()
    api, bob = client(visibility="own"), as_(prepared, "bob")
    assert all(one["quota"] == "" for one in api.get("/api/queue", headers=bob).json()["waiting"])
    assert "alice" not in api.get("/", headers=bob).text
    api.put(f"/api/runs/{waiting}/shares", json={"users": ["bob"]}, headers=as_(prepared, "alice"))
    shown = api.get(f"/api/runs/{waiting}", headers=bob).json()["queue"]["quota"]
    assert shown == "alice uses as many devices as alice may use at once."
    assert api.get(f"/api/runs/{waiting}", headers=as_(prepared, "alice")).json()["queue"]["quota"] == FULL


def test_a_body_that_has_no_place_in_its_sender_s_quota_is_not_received(prepared):
    api, alice = client(), as_(prepared, "alice")
    used = api.patch("/api/users/alice", json={"max_disk_bytes": 2**30}).json()["disk_bytes"]
    assert used > 0
    api.patch("/api/users/alice", json={"max_disk_bytes": used + 2_000})
    received = []

    def body():
        for number in range(100):
            received.append(number)
            yield b'{"prompt": "one", "completion": "two"}\n' * 5

    whole = b"".join(body())
    for path in ("/api/datasets?name=rows.jsonl", "/api/archives"):
        for content in (whole, body()):
            answer = api.post(path, content=content, headers=alice)
            assert (answer.status_code, answer.json()["error"]["field"]) == (422, "body"), answer.text
            assert "that alice may use on disk." in answer.json()["error"]["message"]
    files = [("file", ("a.jsonl", whole))]
    assert api.post("/api/datasets", files=files, headers=alice).status_code == 422
    assert api.post("/api/datasets/check", files=files, headers=alice).status_code == 200  # stores nothing
    assert (
        api.post("/api/datasets?name=rows.jsonl", content=whole[:1000], headers=alice).status_code == 422
    )  # half a row
    assert api.post("/api/datasets?name=rows.jsonl", content=whole).status_code == 201


def test_start_and_its_check_are_refused_beyond_the_limit(prepared):
    api, alice = client(), as_(prepared, "alice")
    api.patch("/api/users/alice", json={"max_waiting": 1})
    config = {"model": "static/starter", "data": prepared.dataset}
    with database.write() as session:
        session.exec(update(Run).where(Run.id == prepared.waiting).values(owner="alice"))
    checked = api.post("/api/checks", json=config, headers=alice).json()
    started = api.post("/api/runs", json=config, headers=alice)
    assert (checked["ready"], started.status_code) == (False, 422)
    assert checked["problems"] == started.json()["problems"]
    expected = "may have 1 waiting at once (runs, evaluations, builds and models), and would have 2."
    assert started.json()["error"]["message"] == expected
    cloned = api.post(f"/api/runs?parent={prepared.finished}", json=config, headers=alice)
    assert cloned.json()["error"] == started.json()["error"]
    assert api.post("/api/runs", json=config).status_code == 201

"""The REST routes of sweeps."""

import json

import pytest
from played_run import PlayedRun, model_folder
from web import client

from training.run_folder.events import Metrics
from worker import celery_app
from worker.store import database, run_list, runs, sweeps
from worker.sweeps import lifecycle


@pytest.fixture
def api(home, monkeypatch):
    """A client of an installation without a broker: runs stay queued in the database."""
    monkeypatch.setattr(celery_app, "notify", lambda run_id: False)
    return client()


@pytest.fixture
def body(tmp_path):
    """A sweep of two configurations with two seeds."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20)))
    config = {"model": str(model_folder(tmp_path / "model")), "data": str(data)}
    return {"config": config, "space": {"lora_r": [4, 8]}, "seeds": 2}


def test_a_plan_queues_nothing(api, body):
    plan = api.post("/api/sweeps/plan", json=body).json()
    assert (plan["total"], plan["starting"], plan["metric"]) == (4, 4, "eval_loss")
    assert plan["steps"] == 4 * 15  # 19 rows in 5 steps, 3 epochs
    assert api.get("/api/sweeps").json() == {"sweeps": []}


def test_a_sweep_names_its_best_configuration_with_its_interval(api, body):
    answer = api.post("/api/sweeps", json=body)
    assert answer.status_code == 201
    sweep = answer.json()
    losses = {(4, 42): 1.0, (4, 43): 1.2, (8, 42): 0.5, (8, 43): 0.8}
    with database.read() as session:
        found = run_list.listing(session=session, query=run_list.Query(search=f"sweep:{sweep['id']}"))
    for run in found:
        loss = losses[run.config["lora_r"], run.config["seed"]]
        PlayedRun.of(run.id).claim().report(Metrics(step=15, values={"eval_loss": loss})).end(
            summary={"eval_loss": loss}
        )
    shown = api.get(f"/api/sweeps/{sweep['id']}").json()
    assert shown["best"]["changes"] == {"lora_r": 8}
    assert shown["best"]["summary"]["n"] == 2
    assert shown["best"]["summary"]["mean"] == pytest.approx(0.65)
    assert shown["lead"]["mean"] == pytest.approx(0.45)
    assert shown["ended"]
    assert api.post(f"/api/sweeps/{sweep['id']}/stop").status_code == 409


def test_a_wrong_sweep_and_an_unknown_one_are_refused(api, body):
    refused = api.post("/api/sweeps", json=body | {"space": {"lora_rank": [1]}})
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == "space.lora_rank"
    assert api.post("/api/sweeps", json=[1]).json()["error"]["field"] == "sweep"
    assert api.get("/api/sweeps/zzzz").status_code == 404


def test_a_repeated_key_gives_the_first_sweep(api, body):
    key = {"Idempotency-Key": "once"}
    first, again = (api.post("/api/sweeps", json=body, headers=key).json() for _ in range(2))
    assert first["id"] == again["id"]
    assert len(api.get("/api/sweeps").json()["sweeps"]) == 1
    assert api.post("/api/sweeps", json=body | {"seeds": 1}, headers=key).status_code == 409


def test_an_ended_sweep_is_deleted_with_its_runs(api, body):
    sweep = api.post("/api/sweeps", json=body).json()
    assert api.delete(f"/api/sweeps/{sweep['id']}").status_code == 409
    assert api.get(f"/api/sweeps/{sweep['id']}").status_code == 200
    api.post(f"/api/sweeps/{sweep['id']}/stop")
    assert api.delete(f"/api/sweeps/{sweep['id']}").status_code == 204
    assert api.get(f"/api/sweeps/{sweep['id']}").status_code == 404
    assert api.get("/api/runs").json()["total"] == 0


def test_a_sweep_with_a_result_that_a_run_loads_is_kept(api, body):
    sweep = api.post("/api/sweeps", json=body).json()["id"]
    api.post(f"/api/sweeps/{sweep}/stop")
    first, *others = [run["id"] for run in api.get("/api/runs").json()["runs"]]
    waiting = PlayedRun("continues", init_adapter=first).id
    refused = api.delete(f"/api/sweeps/{sweep}")
    assert refused.status_code == 409 and first in refused.text, refused.text
    assert api.get("/api/runs").json()["total"] == len(others) + 2
    with database.write() as session:
        sweeps.get(session=session, sweep_id=sweep).deleted_at = 1.0  # the other run was queued after the check
    lifecycle.finish_all()
    assert {run["id"] for run in api.get("/api/runs").json()["runs"]} == {first, waiting}
    with database.read() as session:
        assert sweeps.deleted(session=session) == []


def test_a_worker_finishes_an_interrupted_deletion(api, body, monkeypatch):
    sweep = api.post("/api/sweeps", json=body).json()["id"]
    api.post(f"/api/sweeps/{sweep}/stop")
    kept = [run["id"] for run in api.get("/api/runs").json()["runs"]]
    deleted: list[str] = []

    def delete_two(*, session, run_id):
        if len(deleted) == 2:
            raise KeyboardInterrupt  # the process is killed
        deleted.append(run_id)
        delete_run(session=session, run_id=run_id)

    delete_run = runs.delete
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(runs, "delete", delete_two)
        lifecycle.delete(sweep)
    left = {run["id"] for run in api.get("/api/runs").json()["runs"]}
    assert left == set(kept) - set(deleted)
    assert api.get("/api/sweeps").json() == {"sweeps": []}  # it is no longer offered
    api.post(f"/api/runs/{sorted(left)[0]}/resume")
    lifecycle.finish_all()
    [resumed] = api.get("/api/runs").json()["runs"]
    assert resumed["id"] == sorted(left)[0]
    with database.read() as session:
        assert sweeps.deleted(session=session) == []

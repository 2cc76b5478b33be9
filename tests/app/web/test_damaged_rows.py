"""A run's row that cannot be read whole breaks no list and no page: it is shown as damaged, and can be deleted."""

import json
import math

import pytest
from played_run import PlayedRun
from sqlalchemy import text
from web import client

from worker.store import database
from worker.store.tables import Status

DAMAGES = {
    "config": json.dumps([1]),
    "best_loss": math.inf,
    "final_loss": -math.inf,
    "created_at": math.inf,
    "queued_at": -1.0,
    "started_at": 1e300,
    "peak_bytes": -5,
    "seconds_per_step": math.inf,
    "name": "x" * 5000,
    "tags": json.dumps([["x"]]),
    "notes": "x" * 30_000,
    "summary": json.dumps({"memory": 5}),
    "plan": json.dumps({"target_modules": 5}),
    "forecast": json.dumps({"allocated_bytes": "much"}),
    "error": json.dumps({"message": 5}),
    "stepped_down": json.dumps([1]),
    "fingerprints": json.dumps({"a": 5}),
}


@pytest.fixture
def api(home):
    return client()


def damage(run_id, column, value):
    with database.write() as session:
        session.exec(text(f"UPDATE run SET {column} = :value WHERE id = :id").bindparams(value=value, id=run_id))


@pytest.mark.slow
def test_a_damaged_run_is_listed_shown_and_deleted(api, subtests):
    whole = PlayedRun("whole").claim()
    whole.end(Status.FINISHED)
    for column, value in DAMAGES.items():
        with subtests.test(column):
            run = PlayedRun(f"with another {column}").claim()
            run.end(Status.FAILED)
            damage(run.id, column, value)
            listed = {row["id"]: row for row in api.get("/api/runs").json()["runs"]}
            assert listed[run.id]["damaged"] == [column] and listed[whole.id]["damaged"] == []
            assert api.get(f"/api/runs/{run.id}").json()["damaged"] == [column]
            for path in (
                "/api/runs.csv",
                "/v1/models",
                f"/api/compare?runs={run.id},{whole.id}",
                f"/api/runs/{run.id}/outputs",
            ):
                assert api.get(path).status_code < 500, path
            assert "damaged" in api.get("/").text and "whole" in api.get("/").text
            assert f"cannot be read: {column}." in api.get(f"/run?id={run.id}").text
            assert api.delete(f"/api/runs/{run.id}").status_code == 204
    assert api.get(f"/api/runs/{whole.id}").json()["damaged"] == []

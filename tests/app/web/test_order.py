"""REST routes that keep order: describing, archiving, deleting and exporting runs, and the queue."""

import csv
import io
import json

import pytest
from played_run import PlayedRun
from web import client

from worker import celery_app
from worker.settings import get_settings


@pytest.fixture
def api(home, monkeypatch):
    """A client of an installation without a broker: runs stay queued in the database."""
    monkeypatch.setattr(celery_app, "notify", lambda run_id: False)
    return client()


def told(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_a_run_is_described_and_what_is_left_out_stays(api):
    run = PlayedRun("sums")
    api.patch(
        f"/api/runs/{run.id}", json={"tags": [" LR sweep ", "paper", "paper"], "notes": "first try", "pinned": True}
    )
    values = api.patch(f"/api/runs/{run.id}", json={"name": "sums, again"}).json()
    assert values["name"] == "sums, again"
    assert (values["tags"], values["notes"], values["pinned"]) == (["lr sweep", "paper"], "first try", True)


@pytest.mark.parametrize(
    ("change", "field"), [({"name": "  "}, "name"), ({"tags": ["x" * 41]}, "tags"), ({"notes": "x" * 20_001}, "notes")]
)
def test_a_description_that_cannot_be_stored_is_named_and_changes_nothing(api, change, field):
    run = PlayedRun("sums")
    assert told(api.patch(f"/api/runs/{run.id}", json=change), 422)["field"] == field
    assert api.get(f"/api/runs/{run.id}").json()["name"] == "sums"


def test_a_change_that_is_refused_in_part_changes_nothing(api):
    run = PlayedRun("sums")
    told(api.patch(f"/api/runs/{run.id}", json={"name": "other", "add_tags": ["x"], "archived": True}), 409)
    values = api.get(f"/api/runs/{run.id}").json()
    assert (values["name"], values["tags"]) == ("sums", [])


def test_an_unknown_property_is_refused(api):
    run = PlayedRun("sums")
    problem = told(api.patch(f"/api/runs/{run.id}", json={"color": "red"}), 422)
    assert (problem["field"], problem["value"]) == ("color", "red")


def test_only_ended_runs_are_archived_and_deleted(api):
    run = PlayedRun("sums")
    told(api.patch(f"/api/runs/{run.id}", json={"archived": True}), 409)
    told(api.delete(f"/api/runs/{run.id}"), 409)
    run.claim().end()
    assert api.patch(f"/api/runs/{run.id}", json={"archived": True}).json()["archived_at"]
    assert api.get("/api/runs").json() == {"runs": [], "total": 0}
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True, exist_ok=True)
    assert api.delete(f"/api/runs/{run.id}").status_code == 204
    assert not folder.exists()
    told(api.get(f"/api/runs/{run.id}"), 404)


def test_pages_of_the_history_follow_each_other(api):
    names = [PlayedRun(f"run {number}").claim().end() and f"run {number}" for number in range(5)]
    pages = [api.get("/api/runs", params={"limit": 2, "offset": offset}).json() for offset in (0, 2, 4)]
    assert [run["name"] for page in pages for run in page["runs"]] == names[::-1]
    assert {page["total"] for page in pages} == {5}


def test_a_wrong_filter_is_answered_with_its_field(api):
    assert told(api.get("/api/runs", params={"search": "metod:lora"}), 422)["field"] == "metod"


def test_the_queue_is_shown_moved_held_and_paused(api):
    first, second, third = PlayedRun("a"), PlayedRun("b"), PlayedRun("c")
    assert [run["name"] for run in api.get("/api/queue").json()["waiting"]] == ["a", "b", "c"]
    moved = api.post(f"/api/runs/{third.id}/move", json={"before": first.id}).json()
    assert [run["name"] for run in moved["waiting"]] == ["c", "a", "b"]
    api.patch(f"/api/runs/{second.id}", json={"held": True, "priority": "high"})
    first_in_line = api.get("/api/queue").json()["waiting"][0]
    assert (first_in_line["name"], first_in_line["held"]) == ("b", True)
    assert api.post("/api/queue", json={"paused": True}).json()["paused_at"]
    assert api.post("/api/queue", json={"paused": False}).json()["paused_at"] is None


def test_a_run_that_is_not_queued_has_no_place(api):
    running = PlayedRun("a").claim()
    assert "is running" in told(api.post(f"/api/runs/{running.id}/move", json={"before": None}), 409)["message"]


def test_runs_are_exported_as_csv_json_and_markdown(api):
    plain, hostile = PlayedRun("sums | two").claim().end(), PlayedRun("=HYPERLINK(1)", lora_r=4)
    rows = list(csv.DictReader(io.StringIO(api.get("/api/runs.csv").text)))
    assert [row["name"] for row in rows] == ["'=HYPERLINK(1)", "sums | two"]
    assert (rows[0]["config.lora_r"], rows[1]["status"]) == ("4", "finished")
    chosen = json.loads(api.get("/api/runs.json", params={"ids": hostile.id}).text)
    assert [(run["id"], run["config"]["lora_r"]) for run in chosen] == [(hostile.id, 4)]
    lines = api.get("/api/runs.markdown", params={"search": "sums"}).text.splitlines()
    assert lines[2].startswith(f"| sums \\| two ({plain.id}) | finished |")
    assert told(api.get("/api/runs.xls"), 422)["value"] == "xls"


def test_an_export_of_nothing_is_an_empty_table(api):
    assert api.get("/api/runs.csv").text == "id\r\n"


def test_the_size_of_a_run_is_what_deleting_it_frees(api):
    run, empty = PlayedRun("sums").claim().end(), PlayedRun("letters")
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True)
    (folder / "adapter.bin").write_bytes(b"x" * 1000)
    sizes = api.get("/api/system/runs", params={"ids": f"{run.id},{empty.id}"}).json()["runs"]
    assert sizes == {run.id: {"bytes": 1000, "files": 1}, empty.id: {"bytes": 0, "files": 0}}
    assert told(api.get("/api/system/runs", params={"ids": "nothing"}), 404)["field"] == "run"


def test_the_example_is_queued_with_its_data(api):
    started = api.post("/api/runs/sample")
    assert (started.status_code, started.json()["name"], started.json()["status"]) == (201, "Orders to JSON", "queued")
    stored = {item["id"] for item in api.get("/api/datasets").json()["datasets"]}
    assert {started.json()["config"][name] for name in ("data", "validation_data")} == stored

"""The REST API and downloads."""

import io
import json
import zipfile
from pathlib import Path

import pytest
import yaml
from played_run import PlayedRun, model_folder
from sqlalchemy.exc import OperationalError
from web import client

from training.config.fields import settings
from training.run_folder.events import Metrics, PhaseStarted
from worker import celery_app
from worker.datasets import datasets
from worker.settings import get_settings
from worker.store import database, run_list
from worker.store.tables import Status


@pytest.fixture
def api(home, monkeypatch):
    """A client of an installation without a broker: runs stay queued in the database."""
    monkeypatch.setattr(celery_app, "notify", lambda run_id: False)
    return client()


@pytest.fixture
def chosen(tmp_path):
    """The required settings of a run: an existing model and data."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20)))
    return {"model": str(model_folder(tmp_path / "model")), "data": str(data)}


def told(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_health_is_ok_if_the_database_answers(api):
    assert api.get("/healthz").json() == {"status": "ok"}


def test_an_empty_history_is_an_empty_list(api):
    assert api.get("/api/runs").json() == {"runs": [], "total": 0}


def test_the_history_is_newest_first_and_can_be_filtered(api):
    first, second = PlayedRun("sums").claim().end(), PlayedRun("letters")
    assert [run["id"] for run in api.get("/api/runs").json()["runs"]] == [second.id, first.id]
    assert [run["name"] for run in api.get("/api/runs", params={"status": "finished"}).json()["runs"]] == ["sums"]
    assert [run["name"] for run in api.get("/api/runs", params={"search": "LETT"}).json()["runs"]] == ["letters"]


@pytest.mark.parametrize(("name", "value"), [("status", "asleep"), ("limit", "many"), ("limit", "0")])
def test_an_invalid_filter_is_reported(api, name, value):
    problem = told(api.get("/api/runs", params={name: value}), 422)
    assert (problem["field"], problem["value"]) == (name, value)


def test_a_run_is_queued_with_its_settings(api, chosen):
    response = api.post("/api/runs", json=chosen | {"name": "first", "lora_r": 8})
    assert response.status_code == 201, response.text
    run = response.json()
    assert (run["status"], run["name"], run["config"]["lora_r"], run["queue"]["place"]) == ("queued", "first", 8, 1)
    assert api.get(f"/api/runs/{run['id']}").json()["id"] == run["id"]


def test_an_invalid_setting_is_refused_with_field_value_and_fix_and_nothing_is_queued(api, chosen):
    response = api.post("/api/runs", json=chosen | {"learning_rate": "abc", "lora_r": 0})
    first = told(response, 422)
    assert (first["field"], first["value"]) == ("lora_r", 0)
    assert "1 to 1024" in first["fix"]
    assert [problem["field"] for problem in response.json()["problems"]] == ["lora_r", "learning_rate"]
    assert api.get("/api/runs").json() == {"runs": [], "total": 0}


def test_an_unknown_setting_is_refused_with_the_closest_name(api, chosen):
    assert "learning_rate" in told(api.post("/api/runs", json=chosen | {"learning_rat": 1}), 422)["fix"]


@pytest.mark.parametrize("body", ["", "{", "[1]", '"text"', "null"])
def test_a_body_without_a_json_object_is_refused(api, body):
    response = api.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
    assert told(response, 422)["field"] == "body"


def test_a_server_on_the_network_does_not_read_its_own_files_for_callers(api, chosen, monkeypatch):
    monkeypatch.setenv("LATHE_HOST", "0.0.0.0")
    get_settings.cache_clear()
    assert told(api.post("/api/runs", json=chosen), 422)["field"] == "model"


def test_a_missing_run_is_named_in_the_answer(api):
    for path in ("", "/series", "/adapter.zip", "/config.yaml"):
        problem = told(api.get(f"/api/runs/nosuchrun{path}"), 404)
        assert (problem["field"], problem["value"]) == ("run", "nosuchrun")
    assert told(api.post("/api/runs/nosuchrun/stop"), 404)["fix"]


def test_an_unknown_path_is_answered_with_the_same_json(api):
    assert told(api.get("/api/nothing"), 404)["message"]


def test_series_come_with_steps_and_values(api):
    run = PlayedRun().claim()
    run.report(Metrics(step=1, values={"loss": 2.0, "grad_norm": None}), Metrics(step=2, values={"loss": 1.0}))
    run.report(Metrics(step=2, rank=0, values={"host_rss": 5e9}))
    result = {entry["name"]: entry for entry in api.get(f"/api/runs/{run.id}/series").json()["series"]}
    assert (result["loss"]["step"], result["loss"]["value"], result["loss"]["rank"]) == ([1, 2], [2.0, 1.0], -1)
    assert result["grad_norm"]["value"] == [None]
    assert result["host_rss"]["rank"] == 0
    only = api.get(f"/api/runs/{run.id}/series", params={"names": "loss", "first_step": 2}).json()["series"]
    assert [(entry["name"], entry["step"]) for entry in only] == [("loss", [2])]


def test_a_queued_run_stops_at_once_and_can_be_resumed(api, chosen):
    run_id = api.post("/api/runs", json=chosen).json()["id"]
    assert api.post(f"/api/runs/{run_id}/stop").json()["status"] == "stopped"
    assert api.post(f"/api/runs/{run_id}/resume").json()["status"] == "queued"


def test_stopping_an_ended_run_and_resuming_an_active_one_are_conflicts(api):
    ended, waiting = PlayedRun().claim().end(), PlayedRun()
    assert "already finished" in told(api.post(f"/api/runs/{ended.id}/stop"), 409)["message"]
    assert told(api.post(f"/api/runs/{waiting.id}/resume"), 409)["value"] == waiting.id


def test_the_downloaded_yaml_creates_the_same_run(api):
    run = PlayedRun('Sums & more/"x"', lora_r=64)
    response = api.get(f"/api/runs/{run.id}/config.yaml")
    assert response.headers["content-disposition"] == f'attachment; filename="Sums-more-x-{run.id}.yaml"'
    written = yaml.safe_load(response.text)
    assert written["lora_r"] == 64
    assert set(written) <= set(settings())


def test_the_adapter_is_sent_completely_or_in_ranges_under_the_runs_name(api):
    run = PlayedRun("<script> Übung").claim().end()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("adapter/adapter_config.json", "{}")
    folder = get_settings().runs_dir / run.id
    folder.mkdir()
    (folder / "adapter.zip").write_bytes(archive.getvalue())

    response = api.get(f"/api/runs/{run.id}/adapter.zip")
    assert response.content == archive.getvalue()
    assert response.headers["content-type"] == "application/zip"
    assert response.headers["content-disposition"] == f'attachment; filename="script-bung-{run.id}.zip"'
    part = api.get(f"/api/runs/{run.id}/adapter.zip", headers={"Range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, archive.getvalue()[4:8])


def test_a_run_without_an_adapter_explains_why(api):
    running = PlayedRun().claim().report(PhaseStarted(phase="training"))
    assert "running" in told(api.get(f"/api/runs/{running.id}/adapter.zip"), 404)["message"]
    running.end(Status.FAILED, reason="it broke")
    assert "resume" in told(api.get(f"/api/runs/{running.id}/adapter.zip"), 404)["fix"]


def test_an_unreachable_database_makes_the_server_unhealthy(api, monkeypatch):
    def broken(**_):
        raise OperationalError("SELECT 1", None, Exception("connection refused"))

    monkeypatch.setattr(database, "now", broken)
    assert "connection refused" in told(api.get("/healthz"), 503)["message"]


def test_a_run_name_is_returned_unchanged(api):
    PlayedRun("<script>alert(1)</script>")
    assert api.get("/api/runs").json()["runs"][0]["name"] == "<script>alert(1)</script>"
    with database.read() as session:
        assert len(run_list.listing(session=session)) == 1


def test_a_posted_log_is_diagnosed(api, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"num_attention_heads": 32, "hidden_size": 4096, "vocab_size": 32000}')
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
    asked = {"model": str(config), "micro_batch": 4}
    data = api.post("/api/diagnoses", content=log, params=asked, headers={"Content-Type": "text/plain"}).json()
    assert (data["cause"], data["evidence"]) == ("cuda_out_of_memory", [log])
    assert data["inferred"]["sequence_length"] == 4096


@pytest.mark.parametrize(
    ("log", "params", "field"),
    [("", {}, "log"), ("x", {"model": "/no/such"}, "model"), ("x", {"micro_batch": "0"}, "micro_batch")],
)
def test_problems_of_a_posted_log_are_reported(api, log, params, field):
    assert told(api.post("/api/diagnoses", content=log, params=params), 422)["field"] == field


def test_a_posted_configuration_is_translated(api):
    text = "finetuning_type: lora\nmodel_name_or_path: m\ncutoff_len: 512\n"
    data = api.post("/api/imports", content=text).json()
    assert (data["programs"], data["missing"], data["settings"]["max_length"]) == (["LLaMA-Factory"], ["data"], 512)
    assert told(api.post("/api/imports", content="hello"), 422)["field"] == "file"


def test_a_failed_run_is_diagnosed(api):
    run = PlayedRun("sums").claim().prints("ValueError: Attempting to unscale FP16 gradients.").end(Status.FAILED)
    assert api.get(f"/api/runs/{run.id}/diagnosis").json()["cause"] == "fp16_weights_trained"
    assert told(api.get("/api/runs/none/diagnosis"), 404)["field"] == "run"


def test_a_repeated_request_with_the_same_key_answers_the_first_run(api, chosen):
    key = {"Idempotency-Key": "attempt 1"}
    first, second = (api.post("/api/runs", json=chosen, headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"]
    assert api.get("/api/runs").json()["total"] == 1
    problem = told(api.post("/api/runs", json=chosen | {"lora_r": 4}, headers=key), 409)
    assert (problem["field"], problem["value"]) == ("Idempotency-Key", "attempt 1")


def test_rows_of_a_data_set_are_returned_by_offset_and_by_search(api, chosen):
    item = datasets.add_file(path=Path(chosen["data"]), name="rows.jsonl")
    part = api.get(f"/api/datasets/{item.id}/rows", params={"offset": 5, "limit": 2}).json()
    assert [(row["row"], row["values"]["prompt"]) for row in part["rows"]] == [(6, "5"), (7, "6")]
    assert (part["total"], part["next"]) == (20, 7)
    found = api.get(f"/api/datasets/{item.id}/rows", params={"search": "19"}).json()
    assert ([row["row"] for row in found["rows"]], found["complete"]) == ([19, 20], True)
    assert told(api.get(f"/api/datasets/{item.id}/rows", params={"offset": -1}), 422)["field"] == "offset"
    assert told(api.get("/api/datasets/nosuchset/rows"), 404)["field"] == "dataset"
    assert told(api.get(f"/api/datasets/{item.id}/rows", params={"search": " "}), 422)["field"] == "search"


def test_a_clone_names_its_parent_which_has_to_exist(api, chosen):
    first = api.post("/api/runs", json=chosen).json()
    clone = api.post("/api/runs", json=chosen, params={"parent": first["id"][:8]}).json()
    assert clone["parent_id"] == first["id"]
    assert told(api.post("/api/runs", json=chosen, params={"parent": "nosuchrun"}), 404)["field"] == "run"
    assert api.get("/api/runs").json()["total"] == 2

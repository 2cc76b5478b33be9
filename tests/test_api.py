"""The REST API and the files that are downloaded."""

import io
import json
import zipfile

import pytest
import yaml
from played_run import PlayedRun, model_folder
from sqlalchemy.exc import OperationalError
from web import client

from training.events import Metrics, PhaseStarted
from training.fields import settings
from worker import database, queue, runs
from worker.models import Status
from worker.settings import get_settings


@pytest.fixture
def api(home, monkeypatch):
    """A client of an installation whose broker is away: runs wait in the database."""
    monkeypatch.setattr(queue, "ring", lambda run_id: False)
    return client()


@pytest.fixture
def chosen(tmp_path):
    """The settings that every run needs: a model and data that are there."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}", "completion": f"{n + 1}"}) + "\n" for n in range(20)))
    return {"model": str(model_folder(tmp_path / "model")), "data": str(data)}


def told(response, status):
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_health_says_ok_where_the_database_answers(api):
    assert api.get("/healthz").json() == {"status": "ok"}


def test_an_empty_history_is_an_empty_list(api):
    assert api.get("/api/runs").json() == {"runs": []}


def test_the_history_is_newest_first_and_can_be_filtered(api):
    first, second = PlayedRun("sums").claim().end(), PlayedRun("letters")
    assert [run["id"] for run in api.get("/api/runs").json()["runs"]] == [second.id, first.id]
    assert [run["name"] for run in api.get("/api/runs", params={"status": "finished"}).json()["runs"]] == ["sums"]
    assert [run["name"] for run in api.get("/api/runs", params={"search": "LETT"}).json()["runs"]] == ["letters"]


@pytest.mark.parametrize(("name", "value"), [("status", "asleep"), ("limit", "many"), ("limit", "0")])
def test_a_filter_that_makes_no_sense_is_named(api, name, value):
    problem = told(api.get("/api/runs", params={name: value}), 422)
    assert (problem["field"], problem["value"]) == (name, value)


def test_a_run_is_queued_with_its_settings(api, chosen):
    response = api.post("/api/runs", json=chosen | {"name": "first", "lora_r": 8})
    assert response.status_code == 201, response.text
    run = response.json()
    assert (run["status"], run["name"], run["config"]["lora_r"], run["queue"]["place"]) == ("queued", "first", 8, 1)
    assert api.get(f"/api/runs/{run['id']}").json()["id"] == run["id"]


def test_a_wrong_setting_is_refused_with_field_value_and_fix_and_nothing_is_queued(api, chosen):
    response = api.post("/api/runs", json=chosen | {"learning_rate": "abc", "lora_r": 0})
    first = told(response, 422)
    assert (first["field"], first["value"]) == ("lora_r", 0)
    assert "1 to 1024" in first["fix"]
    assert [problem["field"] for problem in response.json()["problems"]] == ["lora_r", "learning_rate"]
    assert api.get("/api/runs").json() == {"runs": []}


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest(api, chosen):
    assert "learning_rate" in told(api.post("/api/runs", json=chosen | {"learning_rat": 1}), 422)["fix"]


@pytest.mark.parametrize("body", ["", "{", "[1]", '"text"', "null"])
def test_a_body_that_is_no_json_object_is_named(api, body):
    response = api.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
    assert told(response, 422)["field"] == "body"


def test_a_server_on_the_network_gives_no_file_of_its_own_to_callers(api, chosen, monkeypatch):
    monkeypatch.setenv("LATHE_HOST", "0.0.0.0")
    get_settings.cache_clear()
    assert told(api.post("/api/runs", json=chosen), 422)["field"] == "data"


def test_a_run_that_does_not_exist_is_named(api):
    for path in ("", "/series", "/adapter.zip", "/config.yaml"):
        problem = told(api.get(f"/api/runs/nosuchrun{path}"), 404)
        assert (problem["field"], problem["value"]) == ("run", "nosuchrun")
    assert told(api.post("/api/runs/nosuchrun/stop"), 404)["fix"]


def test_a_path_that_does_not_exist_is_answered_in_the_same_form(api):
    assert told(api.get("/api/nothing"), 404)["message"]


def test_series_come_with_steps_and_values(api):
    run = PlayedRun().claim()
    run.report(Metrics(step=1, values={"loss": 2.0, "grad_norm": None}), Metrics(step=2, values={"loss": 1.0}))
    run.report(Metrics(step=2, rank=0, values={"host_rss": 5e9}))
    found = {one["name"]: one for one in api.get(f"/api/runs/{run.id}/series").json()["series"]}
    assert (found["loss"]["step"], found["loss"]["value"], found["loss"]["rank"]) == ([1, 2], [2.0, 1.0], -1)
    assert found["grad_norm"]["value"] == [None]
    assert found["host_rss"]["rank"] == 0
    only = api.get(f"/api/runs/{run.id}/series", params={"names": "loss", "first_step": 2}).json()["series"]
    assert [(one["name"], one["step"]) for one in only] == [("loss", [2])]


def test_a_queued_run_stops_at_once_and_can_be_resumed(api, chosen):
    run_id = api.post("/api/runs", json=chosen).json()["id"]
    assert api.post(f"/api/runs/{run_id}/stop").json()["status"] == "stopped"
    assert api.post(f"/api/runs/{run_id}/resume").json()["status"] == "queued"


def test_stopping_what_has_ended_and_resuming_what_has_not_are_conflicts(api):
    ended, waiting = PlayedRun().claim().end(), PlayedRun()
    assert "already finished" in told(api.post(f"/api/runs/{ended.id}/stop"), 409)["message"]
    assert told(api.post(f"/api/runs/{waiting.id}/resume"), 409)["value"] == waiting.id


def test_the_configuration_is_downloaded_as_the_yaml_that_makes_the_same_run(api):
    run = PlayedRun("Sums & more/\"x\"", lora_r=64)
    response = api.get(f"/api/runs/{run.id}/config.yaml")
    assert response.headers["content-disposition"] == f'attachment; filename="Sums-more-x-{run.id}.yaml"'
    written = yaml.safe_load(response.text)
    assert written["lora_r"] == 64
    assert set(written) <= set(settings())


def test_the_adapter_is_sent_whole_and_in_ranges_under_the_runs_name(api):
    run = PlayedRun("<script> Übung").claim().end()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("adapter/adapter_config.json", "{}")
    folder = get_settings().runs_dir / run.id
    folder.mkdir()
    (folder / "adapter.zip").write_bytes(archive.getvalue())

    response = api.get(f"/api/runs/{run.id}/adapter.zip")
    assert response.content == archive.getvalue()
    assert response.headers["content-type"] == "application/zip"
    assert response.headers["content-disposition"] == f'attachment; filename="script-bung-{run.id}.zip"'
    part = api.get(f"/api/runs/{run.id}/adapter.zip", headers={"Range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, archive.getvalue()[4:8])


def test_a_run_without_an_adapter_says_why(api):
    running = PlayedRun().claim().report(PhaseStarted(phase="training"))
    assert "running" in told(api.get(f"/api/runs/{running.id}/adapter.zip"), 404)["message"]
    running.end(Status.FAILED, reason="it broke")
    assert "resume" in told(api.get(f"/api/runs/{running.id}/adapter.zip"), 404)["fix"]


def test_a_database_that_does_not_answer_is_no_healthy_server(api, monkeypatch):
    def broken(**_):
        raise OperationalError("SELECT 1", None, Exception("connection refused"))

    monkeypatch.setattr(database, "now", broken)
    assert "connection refused" in told(api.get("/healthz"), 503)["message"]


def test_what_a_run_is_called_comes_back_as_it_was_given(api):
    PlayedRun("<script>alert(1)</script>")
    assert api.get("/api/runs").json()["runs"][0]["name"] == "<script>alert(1)</script>"
    with database.read() as session:
        assert len(runs.listing(session=session)) == 1


def test_a_log_that_is_sent_is_diagnosed(api, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"num_attention_heads": 32, "hidden_size": 4096, "vocab_size": 32000}')
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
    asked = {"model": str(config), "micro_batch": 4}
    found = api.post("/api/diagnoses", content=log, params=asked, headers={"Content-Type": "text/plain"}).json()
    assert (found["cause"], found["evidence"]) == ("cuda_out_of_memory", [log])
    assert found["inferred"]["sequence_length"] == 4096


@pytest.mark.parametrize(
    ("log", "params", "field"),
    [("", {}, "log"), ("x", {"model": "/no/such"}, "model"), ("x", {"micro_batch": "0"}, "micro_batch")],
)
def test_what_is_wrong_with_a_log_that_is_sent_is_named(api, log, params, field):
    assert told(api.post("/api/diagnoses", content=log, params=params), 422)["field"] == field


def test_a_failed_run_is_diagnosed(api):
    run = PlayedRun("sums").claim().prints("ValueError: Attempting to unscale FP16 gradients.").end(Status.FAILED)
    assert api.get(f"/api/runs/{run.id}/diagnosis").json()["cause"] == "fp16_weights_trained"
    assert told(api.get("/api/runs/none/diagnosis"), 404)["field"] == "run"

"""Submitting a run stores it with its data, its paths resolved, and sends a message."""

import json
from hashlib import sha256
from pathlib import Path

from training.config.run_config import RunConfig
from worker import allowed_paths
from worker.allowed_paths import AllowedPaths
from worker.datasets import datasets
from worker.runs import submit
from worker.runs.settle import resolve
from worker.store import database as db
from worker.store import run_list, runs
from worker.store.tables import Status

NOTHING = AllowedPaths(data=(), models=None)
ROW = json.dumps({"prompt": "question", "completion": "answer"}) + "\n"


def test_a_run_is_queued_with_its_data_in_the_store_and_its_model_s_full_path(database, rung, config, model, data):
    run = submit.submit(config(learning_rate=1e-3), parent_id="earlier")
    with db.read() as session:
        (dataset_id,) = [item.id for item in datasets.listing(session=session)]
    assert (run.status, run.dataset_id, run.parent_id, run.name) == (
        Status.QUEUED,
        dataset_id,
        "earlier",
        "tiny on rows.jsonl",
    )
    assert (run.config["model"], run.config["data"], run.config["learning_rate"]) == (str(model), dataset_id, 1e-3)
    assert rung == [run.id]


def test_the_trainers_configuration_has_absolute_paths_and_ignores_later_changes_of_files(database, rung, config, data):
    run = submit.submit(config(validation_data=str(data), seed=7))
    data.write_text("changed")
    resolved = resolve(RunConfig.model_validate(run.config))
    assert resolved.seed == 7
    for path in (resolved.data, resolved.validation_data):
        assert Path(path).is_absolute()
        assert Path(path).read_text() == ROW * 20


def test_a_run_keeps_the_fingerprint_of_its_data_when_that_is_deleted(database, rung, config, data):
    run = submit.submit(config())
    with db.write() as session:
        runs.request_stop(session=session, run_id=run.id)
    with db.write() as session:
        datasets.delete(session=session, dataset_id=run.dataset_id)
    with db.read() as session:
        stored = runs.get(session=session, run_id=run.id)
    assert (stored.dataset_id, stored.fingerprints) == (None, {"data": sha256(data.read_bytes()).hexdigest()})


def test_a_given_name_is_kept(home, rung, config):
    assert submit.submit(config(name="mine")).name == "mine"


def test_an_uploaded_data_set_is_used_by_its_id(database, rung, config, data):
    uploaded = datasets.add_file(path=data, name="Orders.jsonl")
    run = submit.submit(config(data=uploaded.id), allowed=NOTHING)
    assert (run.dataset_id, run.name) == (uploaded.id, "tiny on Orders.jsonl")


def test_relative_paths_resolve_in_the_current_folder_and_then_in_the_checkout(
    home, rung, config, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert submit.submit(config(model="models/tiny", data="rows.jsonl")).config["model"] == str(model)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(allowed_paths, "ROOT", tmp_path)
    assert submit.submit(config(model="models/tiny", data="rows.jsonl")).config["model"] == str(model)


def test_a_hub_id_stays_as_it_is(home, rung, config):
    assert submit.submit(config(model="Qwen/Qwen3-0.6B")).config["model"] == "Qwen/Qwen3-0.6B"


def test_submitting_works_without_a_broker(home, config):
    run = submit.submit(config())
    with db.read() as session:
        assert [one.id for one in run_list.listing(session=session)] == [run.id]

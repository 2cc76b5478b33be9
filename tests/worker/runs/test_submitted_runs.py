"""Submitted runs later: resumed, without their model or data, and their lineage."""

import json
import shutil
from hashlib import sha256

import pytest

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.run_folder.record import DataSource
from worker.datasets import datasets
from worker.runs import requests, submit
from worker.runs.lineage import lineage_of
from worker.runs.settle import resolve
from worker.store import claims, runs
from worker.store import database as db
from worker.store.tables import Status

ROW = json.dumps({"prompt": "question", "completion": "answer"}) + "\n"


def end(run, status):
    with db.write() as session:
        claims.claim(session=session, run_id=run.id, owner="node1:1:1", devices=["node1/cpu"], lease_seconds=60)
        claims.finish(session=session, run_id=run.id, attempt=1, status=status)


def test_resuming_a_stopped_run_sends_a_message(database, rung, config):
    run = submit.submit(config())
    assert requests.stop(run.id).status is Status.STOPPED
    assert requests.resume(run.id).status is Status.QUEUED
    assert rung == [run.id, run.id]


def test_a_run_without_its_model_or_data_cannot_be_resumed(database, rung, config, model):
    run = submit.submit(config())
    end(run, Status.FAILED)
    shutil.move(model, model.with_name("moved"))
    with pytest.raises(ConfigError, match="model"):
        requests.resume(run.id)
    shutil.move(model.with_name("moved"), model)
    with db.write() as session:
        datasets.delete(session=session, dataset_id=run.dataset_id)
    with pytest.raises(
        ConfigError, match=f"data .given: '{run.dataset_id}'.: was deleted. Clone the run and choose another data set."
    ):
        requests.resume(run.id)
    with db.read() as session:
        assert runs.get(session=session, run_id=run.id).status is Status.FAILED
    assert rung == [run.id]


def test_data_missing_on_this_machine_is_reported_with_its_path(home, rung, config):
    run = submit.submit(config())
    with db.read() as session:
        path = datasets.path_of(datasets.get(session=session, dataset_id=run.dataset_id))
        path.unlink()
        with pytest.raises(
            ConfigError, match=f"is not on this machine .{path}.. All workers need the same data folder"
        ):
            resolve(RunConfig.model_validate(run.config))


def test_the_lineage_of_a_run_has_its_parent_and_its_given_data(home, rung, config, data, tmp_path):
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(ROW * 3)
    run = submit.submit(config(validation_data=str(held_out)), parent_id="earlier")
    with db.read() as session:
        known = lineage_of(session=session, run=runs.get(session=session, run_id=run.id))
    assert (known.run, known.name, known.parent) == (run.id, "tiny on rows.jsonl", "earlier")
    assert known.data == [
        DataSource("Training data", "rows.jsonl", sha256(data.read_bytes()).hexdigest()),
        DataSource("Held-out data", "held-out.jsonl", sha256(held_out.read_bytes()).hexdigest()),
    ]

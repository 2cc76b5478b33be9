"""Submitting a run: all problems are reported, and a refused run leaves nothing."""

import json
import shutil
import struct
import sys
from collections import namedtuple
from hashlib import sha256
from pathlib import Path

import pytest

from training.config.fields import ConfigError
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.run_folder.lineage import DataSource
from worker import allowed_paths, celery_app
from worker.allowed_paths import AllowedPaths
from worker.datasets import datasets
from worker.datasets.run_data import resolve
from worker.machine import devices
from worker.runs import submit
from worker.runs.lineage import lineage_of
from worker.settings import get_settings
from worker.store import claims, runs
from worker.store import database as db
from worker.store.listed import run_list
from worker.store.tables import Status

NOTHING = AllowedPaths(data=(), models=None)

ROW = json.dumps({"prompt": "question", "completion": "answer"}) + "\n"


@pytest.fixture
def rung(monkeypatch):
    """The ids of runs for which a message was sent, without a broker."""
    heard = []
    monkeypatch.setattr(celery_app, "notify", lambda run_id: heard.append(run_id) or True)
    return heard


@pytest.fixture
def model(tmp_path):
    """A folder that looks like a model: one tensor of 4 elements."""
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    facts = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(facts))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(ROW * 20)
    return path


@pytest.fixture
def config(model, data):
    def make(**settings):
        return RunConfig.model_validate({"model": str(model), "data": str(data)} | settings)

    return make


def kept():
    """Everything that a submit can store: runs, data sets, files."""
    with db.read() as session:
        ids = (
            [run.id for run in run_list.listing(session=session)],
            [item.id for item in datasets.listing(session=session)],
        )
    return (*ids, sorted(path.name for path in get_settings().datasets_dir.iterdir()))


def problems_of(config, **values):
    with pytest.raises(ConfigError) as caught:
        submit.submit(config, **values)
    return {problem.field: problem for problem in caught.value.problems}


def test_a_run_is_queued_with_its_data_in_the_store_and_its_model_s_full_path(database, rung, config, model, data):
    run = submit.submit(config(learning_rate=1e-3), parent_id="earlier")
    (dataset_id,) = kept()[1]
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
    with db.read() as session:
        resolved = resolve(RunConfig.model_validate(run.config), session)
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
    run = submit.submit(config(data=uploaded.id), reach=NOTHING)
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
    assert kept()[0] == [run.id]


def test_all_problems_are_reported_at_once(database, rung, config, tmp_path):
    problems = problems_of(
        config(model=str(tmp_path), data="none.csv", validation_data="0123456789abcdef", strategy="zero3")
    )
    assert problems.keys() == {"model", "strategy", "data", "validation_data"}
    assert problems["model"].value == str(tmp_path) and "config.json" in problems["model"].message
    assert (problems["strategy"].value, problems["strategy"].fix) == (
        "zero3",
        "Set strategy to single, or num_processes to 2.",
    )
    assert str(problems["data"]) == (
        "data (given: 'none.csv'): is neither a file nor a data set id. "
        "Give a JSON, JSONL, CSV, TSV, text or Parquet file, or pick an uploaded data set."
    )
    assert all(problem.fix for problem in problems.values())
    assert (kept(), rung) == (([], [], []), [])


@pytest.mark.parametrize(
    ("task", "named", "message"),
    [
        ("dpo", "data", "needs chosen and rejected answers"),
        ("kto", "data", "needs answers with a label"),
        ("seq2seq", "task", "LlamaForCausalLM is decoder-only"),
    ],
)
def test_a_task_that_does_not_fit_model_or_data_is_refused(database, rung, config, task, named, message):
    assert message in problems_of(config(task=task))[named].message
    assert (kept(), rung) == (([], [], []), [])


@pytest.mark.parametrize("field", ["name", "model", "data", "target_modules"])
def test_a_character_that_cannot_be_printed_is_refused(database, rung, config, field):
    problem = problems_of(config(**{field: "a\0b"}))[field]
    assert (problem.value, problem.message) == ("a\0b", "contains a non-printable character.")
    assert kept() == ([], [], [])


@pytest.mark.parametrize("value", ["x" * 5000, "~nobody-of-that-name/x"])
def test_an_impossible_path_is_refused(home, rung, config, value):
    assert problems_of(config(model=value, data=value)).keys() == {"model", "data"}


def test_an_invalid_row_is_reported_and_nothing_is_stored(database, rung, config, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(ROW + '{"prompt": "x", "completion": 3}\n')
    problem = problems_of(config(data=str(bad)))["data"]
    assert (problem.value, problem.message) == (str(bad), "row 2, completion is a number (3), not text.")
    assert (kept(), rung) == (([], [], []), [])


def test_an_invalid_validation_file_also_removes_the_new_training_data(database, rung, config, tmp_path):
    (tmp_path / "bad.csv").write_text("")
    assert problems_of(config(validation_data=str(tmp_path / "bad.csv"))).keys() == {"validation_data"}
    assert kept() == ([], [], [])


def test_an_existing_data_set_remains_when_a_submit_fails(database, rung, config, data, tmp_path):
    uploaded = datasets.add_file(path=data, name="rows.jsonl")
    (tmp_path / "bad.csv").write_text("")
    problems_of(config(validation_data=str(tmp_path / "bad.csv")))
    assert kept() == ([], [uploaded.id], [f"{uploaded.id}.jsonl"])


def test_a_run_that_cannot_be_stored_leaves_no_data_set(database, rung, config, monkeypatch):
    def fail(**_):
        raise RuntimeError("no")

    monkeypatch.setattr(runs, "create", fail)
    with pytest.raises(RuntimeError, match="no"):
        submit.submit(config())
    assert (kept(), rung) == (([], [], []), [])


def test_accounts_without_file_access_cannot_use_local_paths(home, rung, config, data):
    problem = problems_of(config(data=str(data)), reach=NOTHING)["data"]
    assert problem.message == "is not a data set id."
    assert kept() == ([], [], [])


def test_a_deepspeed_file_becomes_part_of_the_run(home, rung, config, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}, # sharded\n}')
    spread = {"strategy": "zero2", "num_processes": 2, "deepspeed_config": str(file)}
    assert submit.submit(config(**spread)).config["deepspeed_config"] == '{"zero_optimization": {"stage": 2}}'
    refused = problems_of(config(**spread), reach=NOTHING)["deepspeed_config"]
    assert "neither JSON nor an existing file" in refused.message
    file.write_text('{\n"zero_optimisation": {}}')
    assert problems_of(config(**spread))["deepspeed_config"].message.startswith(
        'line 2: "zero_optimisation" is not a DeepSpeed key'
    )


def test_insufficient_disk_space_for_checkpoints_is_reported_with_both_sizes(home, rung, config, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 10 * 2**20))
    problem = problems_of(config(method="full"))["save_total_limit"]
    assert "need about 256 MiB" in problem.message and "10.0 MiB free" in problem.message
    assert "LATHE_DATA_DIR" in problem.fix


def test_the_disk_space_of_a_run_grows_with_trained_weights_and_kept_checkpoints(config, model):
    facts = submit.describe_model(str(model))
    big = facts.__class__(facts.path, "x", 4096, 7_000_000_000, is_local=True)
    full, lora = submit.disk_needed(config(method="full"), big), submit.disk_needed(config(lora_r=16), big)
    assert full == submit.SPARE_BYTES + 7_000_000_000 * (16 * 3 + 8)
    assert submit.SPARE_BYTES < lora < full / 100
    assert submit.disk_needed(config(method="full", save_total_limit=4), big) > full


def test_runs_are_checked_against_this_machine(home, rung, config, monkeypatch):
    monkeypatch.setattr(devices, "machine", lambda: Machine("cuda", 2, ["A", "B"], [1, 1]))
    problem = problems_of(config(strategy="ddp", num_processes=4))["num_processes"]
    assert "this machine has 2" in problem.message


def test_with_remote_workers_only_impossible_runs_are_refused(home, rung, config, monkeypatch):
    monkeypatch.setenv("LATHE_BROKER_URL", "redis://127.0.0.1:1/0")
    get_settings.cache_clear()
    assert submit.submit(config(strategy="ddp", num_processes=8, precision="fp16")).status is Status.QUEUED
    assert problems_of(config(offload_param="cpu")).keys() == {"offload_param"}


# Afterwards


def end(run, status):
    with db.write() as session:
        claims.claim(session=session, run_id=run.id, owner="node1:1:1", devices=["node1/cpu"], lease_seconds=60)
        claims.finish(session=session, run_id=run.id, attempt=1, status=status)


def test_resuming_a_stopped_run_sends_a_message(database, rung, config):
    run = submit.submit(config())
    assert submit.stop(run.id).status is Status.STOPPED
    assert submit.resume(run.id).status is Status.QUEUED
    assert rung == [run.id, run.id]


def test_a_run_without_its_model_or_data_cannot_be_resumed(database, rung, config, model):
    run = submit.submit(config())
    end(run, Status.FAILED)
    shutil.move(model, model.with_name("moved"))
    with pytest.raises(ConfigError, match="model"):
        submit.resume(run.id)
    shutil.move(model.with_name("moved"), model)
    with db.write() as session:
        datasets.delete(session=session, dataset_id=run.dataset_id)
    with pytest.raises(
        ConfigError, match=f"data .given: '{run.dataset_id}'.: was deleted. Clone the run and choose another data set."
    ):
        submit.resume(run.id)
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
            resolve(RunConfig.model_validate(run.config), session)


def test_a_push_to_a_hub_requires_a_token_at_submit(home, rung, config, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError) as caught:
        submit.submit(config(push_to_hub="owner/model"))
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == ("push_to_hub", "owner/model")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    run = submit.submit(config(push_to_hub="owner/model"))
    assert "hf_good" not in json.dumps(run.config)


def test_a_tracker_that_is_not_installed_is_named_at_submit(home, rung, config, monkeypatch):
    monkeypatch.setattr("training.config.trackers.find_spec", lambda name: None if name == "wandb" else sys.__spec__)
    with pytest.raises(ConfigError) as caught:
        submit.submit(config(report_to="tensorboard, wandb"))
    (problem,) = caught.value.problems
    assert (problem.field, problem.value, problem.message) == ("report_to", "wandb", "is not installed.")
    assert "pip install wandb" in problem.fix
    monkeypatch.setenv("LATHE_BROKER_URL", "redis://elsewhere")
    get_settings.cache_clear()
    assert submit.submit(config(report_to="tensorboard, wandb")).config["report_to"] == "tensorboard, wandb"


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

"""A refused run: all problems are reported, and nothing is left."""

import json
import shutil
import sys
from collections import namedtuple

import pytest

from training.config.fields import ConfigError
from training.config.machine import Machine
from training.model_info.folder import describe_model
from worker.allowed_paths import AllowedPaths
from worker.datasets import datasets
from worker.machine import devices
from worker.runs import checks, submit
from worker.settings import get_settings
from worker.store import database as db
from worker.store import run_list, runs
from worker.store.tables import Status

NOTHING = AllowedPaths(data=(), models=None)
ROW = json.dumps({"prompt": "question", "completion": "answer"}) + "\n"


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


@pytest.mark.parametrize("value", ["x" * 4000, "~nobody-of-that-name/x"])
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
    problem = problems_of(config(data=str(data)), allowed=NOTHING)["data"]
    assert problem.message == "is not a data set id."
    assert kept() == ([], [], [])


def test_insufficient_disk_space_for_checkpoints_is_reported_with_both_sizes(home, rung, config, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 10 * 2**20))
    problem = problems_of(config(method="full"))["save_total_limit"]
    assert "need about 256 MiB" in problem.message and "10.0 MiB free" in problem.message
    assert "LATHE_DATA_DIR" in problem.fix


def test_the_disk_space_of_a_run_grows_with_trained_weights_and_kept_checkpoints(config, model):
    facts = describe_model(str(model))
    big = facts.__class__(facts.path, "x", 4096, 7_000_000_000, is_local=True)
    full, lora = checks.disk_needed(config(method="full"), big), checks.disk_needed(config(lora_r=16), big)
    assert full == 7_000_000_000 * (16 * 3 + 8)
    assert 0 < lora < full / 100
    assert checks.disk_needed(config(method="full", save_total_limit=4), big) > full


def test_runs_are_checked_against_this_machine(home, rung, config, monkeypatch):
    monkeypatch.setattr(devices, "machine", lambda: Machine("cuda", 2, ["A", "B"], [1, 1]))
    problem = problems_of(config(strategy="ddp", num_processes=4))["num_processes"]
    assert "this machine has 2" in problem.message


def test_with_remote_workers_only_impossible_runs_are_refused(home, rung, config, monkeypatch):
    monkeypatch.setenv("LATHE_BROKER_URL", "redis://127.0.0.1:1/0")
    get_settings.cache_clear()
    assert submit.submit(config(strategy="ddp", num_processes=8, precision="fp16")).status is Status.QUEUED
    assert problems_of(config(offload_param="cpu")).keys() == {"offload_param"}


def test_samples_of_vllm_need_it_on_this_machine_or_at_an_address(home, rung, config):
    values = {"task": "grpo", "generation": "vllm", "micro_batch_size": 8}
    problem = problems_of(config(**values))["generation"]
    assert "LATHE_VLLM_COMMAND is not set" in problem.message and "Set generation to model" in problem.fix
    assert submit.submit(config(**values, vllm_url="http://host:8000")).id in rung


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
    monkeypatch.setattr("training.config.name_values.find_spec", lambda name: None if name == "wandb" else sys.__spec__)
    with pytest.raises(ConfigError) as caught:
        submit.submit(config(report_to="tensorboard, wandb"))
    (problem,) = caught.value.problems
    assert (problem.field, problem.value, problem.message) == ("report_to", "wandb", "is not installed.")
    assert "pip install wandb" in problem.fix
    monkeypatch.setenv("LATHE_BROKER_URL", "redis://elsewhere")
    get_settings.cache_clear()
    assert submit.submit(config(report_to="tensorboard, wandb")).config["report_to"] == "tensorboard, wandb"


def test_a_deepspeed_file_becomes_part_of_the_run(home, rung, config, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}, # sharded\n}')
    spread = {"strategy": "zero2", "num_processes": 2, "deepspeed_config": str(file)}
    assert submit.submit(config(**spread)).config["deepspeed_config"] == '{"zero_optimization": {"stage": 2}}'
    refused = problems_of(config(**spread), allowed=NOTHING)["deepspeed_config"]
    assert "neither JSON nor an existing file" in refused.message
    file.write_text('{\n"zero_optimisation": {}}')
    assert problems_of(config(**spread))["deepspeed_config"].message.startswith(
        'line 2: "zero_optimisation" is not a DeepSpeed key'
    )

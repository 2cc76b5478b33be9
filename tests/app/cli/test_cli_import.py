"""`lathe import`: configurations of other programs as a run's."""

import json

import pytest
import yaml
from commands import lathe

from training.config.yaml_file import read_config

LLAMAFACTORY = (
    "stage: sft\nfinetuning_type: lora\nmodel_name_or_path: m\ncutoff_len: 512\nreport_to: wandb\nmoon: full\n"
)


@pytest.fixture
def foreign(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text(LLAMAFACTORY)
    return path


def test_every_key_is_listed_and_the_run_is_printed_as_yaml(foreign):
    done = lathe("import", str(foreign))
    assert done.exit_code == 0
    assert yaml.safe_load(done.stdout)["max_length"] == 512
    assert "cutoff_len: 512 -> max_length 512" in done.stderr
    assert "moon: full  (Lathe does not know this key of LLaMA-Factory.)" in done.stderr
    assert "Still to set: data." in done.stderr


def test_the_result_is_a_configuration_that_lathe_reads(foreign, tmp_path):
    out = tmp_path / "mine.yaml"
    assert lathe("import", str(foreign), "-o", str(out)).exit_code == 0
    assert read_config(out).max_length == 512
    again = lathe("import", str(foreign), "-o", str(out))
    assert again.exit_code == 1
    assert "exists already" in again.stderr


def test_json_has_entries_settings_and_yaml(foreign):
    answer = json.loads(lathe("import", str(foreign), "--json").stdout)
    assert answer["programs"] == ["LLaMA-Factory"]
    assert answer["missing"] == ["data"]
    assert {one["key"]: one["outcome"] for one in answer["keys"]}["report_to"] == "taken"
    assert yaml.safe_load(answer["yaml"])["lora_r"] == answer["settings"]["lora_r"]


def test_a_file_of_another_program_is_not_run_but_named(home, foreign):
    done = lathe("run", str(foreign))
    assert done.exit_code == 1
    assert "is a configuration of LLaMA-Factory" in done.stderr
    assert f"lathe import {foreign}" in done.stderr


def test_a_setting_with_another_name_elsewhere_is_named(home, run_file):
    run_file.write_text(run_file.read_text() + "\ncutoff_len: 512\n")
    assert "In Lathe it is max_length" in lathe("run", str(run_file)).stderr


@pytest.mark.parametrize("content", ["hello", "a: [", "model: m\n"])
def test_a_file_of_no_known_program_is_refused(tmp_path, content):
    path = tmp_path / "unknown.yaml"
    path.write_text(content)
    done = lathe("import", str(path))
    assert done.exit_code == 1
    assert str(path) in done.stderr

"""A configuration is checked once, and every error has the setting, its value and the fix."""

import json
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from paths import ROOT, TESTS

from training.config.choices import Group
from training.config.fields import ConfigError, parse, settings
from training.config.run_config import RunConfig
from training.config.yaml_file import read_config, to_yaml
from training.errors import Problem

GOOD = {"model": "static/starter", "data": "train.jsonl"}


def problems(**values: Any) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse(GOOD | values)
    return caught.value.problems


def test_a_learning_rate_in_words_names_field_value_and_fix() -> None:
    (problem,) = problems(learning_rate="abc")
    assert (problem.field, problem.value) == ("learning_rate", "abc")
    assert str(problem) == (
        "learning_rate (given: 'abc'): is not a number. Give a number above 0, at most 1, for example 0.0002."
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", 0, "out of bounds"),
        ("learning_rate", float("nan"), "number"),
        ("lora_r", 2.5, "integer"),
        ("warmup", 1.5, "fraction below 1 or an integer"),
        ("strategy", "zero4", "single, ddp, zero0"),
        ("use_dora", "perhaps", "true or false"),
        ("data", "", "missing"),
        ("max_steps", 0, "at least 1"),
    ],
)
def test_each_kind_of_invalid_value_is_reported(name: str, value: Any, words: str) -> None:
    (problem,) = problems(**{name: value})
    assert problem.field == name
    assert words in str(problem)


def test_a_misspelled_setting_is_refused_with_the_closest_name() -> None:
    (problem,) = problems(learningrate=1e-4)
    assert (problem.field, problem.fix) == ("learningrate", "Did you mean learning_rate?")


def test_all_problems_are_reported_at_once() -> None:
    assert {problem.field for problem in problems(lora_r=0, epochs=-1, method="loro")} == {"lora_r", "epochs", "method"}


def test_trackers_are_a_list_or_text_and_an_unknown_one_is_refused_with_the_known_ones() -> None:
    base = {"model": "m", "data": "d"}
    for value in (["tensorboard", "wandb"], "wandb,Tensorboard, none"):
        names = parse(base | {"report_to": value}).report_to or ""
        assert set(names.split(", ")) == {"tensorboard", "wandb"}
    assert parse(base | {"report_to": "none"}).report_to is None
    (problem,) = problems(report_to="wandb, weights")
    assert problem.message == "has 'weights', which is not one of tensorboard, wandb, mlflow, trackio."


def test_an_error_has_the_beginning_of_a_long_value():
    with pytest.raises(ConfigError) as caught:
        parse(GOOD | {"lora_r": {f"k{number}": number for number in range(60_000)}})
    assert '(given: {"k0": 0, "k1": 1' in str(caught.value) and len(str(caught.value)) < 3000


def test_of_many_unknown_settings_the_first_are_named_and_the_others_counted():
    with pytest.raises(ConfigError) as caught:
        parse(GOOD | {f"k{number}": number for number in range(60_000)} | {"lora_r": "x"})
    *problems, last = caught.value.problems
    assert len(problems) == 50
    assert str(last) == "configuration: 59,951 more settings are wrong. Correct the others first."


def test_an_empty_text_box_means_not_set() -> None:
    config = parse(GOOD | {"max_steps": " ", "validation_data": ""})
    assert config.max_steps is None and config.validation_data is None


def test_near_duplicates_stay_together_by_default_and_in_older_configurations_they_do_not() -> None:
    config = RunConfig(model="m", data="d")
    assert config.group_by == "near_duplicates"
    assert parse({"model": "m", "data": "d", "group_by": "none"}).group_by is None
    stored = config.model_dump(mode="json")
    assert parse(stored).group_by == "near_duplicates"
    del stored["group_by"]
    assert parse(stored).group_by is None
    assert parse(stored | {"group_by": "topic"}).group_by == "topic"


@pytest.mark.parametrize("archive", sorted((TESTS / "installations").glob("*.tar.*")), ids=lambda path: path.name)
def test_the_runs_of_earlier_versions_keep_the_split_that_they_had(archive: Path) -> None:
    with tarfile.open(archive) as files:
        names = [name for name in files.getnames() if PurePosixPath(name).match("runs/*/config.json")]
        configs = [json.loads(files.extractfile(name).read()) for name in names]  # type: ignore[union-attr]
    assert configs and {parse(one).group_by for one in configs} == {None}


@pytest.mark.parametrize("example", sorted((ROOT / "static").rglob("*.yaml")), ids=lambda path: path.name)
def test_a_file_that_a_person_wrote_has_the_defaults_of_today(example: Path) -> None:
    assert read_config(example).group_by == "near_duplicates"


def test_yaml_has_only_changed_settings_and_loads_unchanged(tmp_path: Path) -> None:
    config = parse(GOOD | {"learning_rate": "1e-3", "strategy": "zero2", "num_processes": 2, "eval_split": 20})
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml(config))
    assert read_config(path) == config
    assert "lora_r" not in path.read_text()


def test_yaml_with_scientific_notation_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: m\ndata: d\nlearning_rate: 1e-4\n")
    config = read_config(path, {"lora_r": "4"})
    assert (config.learning_rate, config.lora_r) == (1e-4, 4)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), ("a: [", "is not valid YAML"), ("- 1", "no settings")]
)
def test_a_file_without_a_configuration_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_config(path)


def test_every_setting_has_a_sentence_a_group_and_a_default_within_its_bounds() -> None:
    for setting in settings().values():
        assert setting.sentence.endswith("."), setting.name
        assert setting.group in Group
    assert set(settings()) == set(RunConfig.model_fields)


def test_the_global_batch_counts_every_process() -> None:
    config = parse(
        GOOD | {"micro_batch_size": 2, "gradient_accumulation_steps": 3, "num_processes": 4, "strategy": "ddp"}
    )
    assert config.global_batch_size == 24


def test_an_unknown_choice_is_reported_with_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean vera\? Choose lora, qlora, full, or one of 38 more"):
        parse({"model": "m", "data": "d", "method": "vear"})

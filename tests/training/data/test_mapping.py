"""Column mappings: checked, applied, and stored with the data set and the run."""

import json

import pytest
from subtest_table import table

from training.config.data_sets import sources
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.data.inspection import inspect
from training.data.mapping import ROLES, apply, parse_mapping, write_mapping
from training.data.rows import read_numbered
from training.errors import DataError
from worker import celery_app
from worker.datasets import datasets
from worker.datasets.datasets import Refused
from worker.runs import submit
from worker.store import database as db

NESTED = {"id": 1, "qa": {"question": "a", "answers": [{"text": "b"}]}, "a.b": "dotted"}
COLUMNS = "prompt=qa.question, completion=qa.answers.0.text"


@pytest.fixture
def nested(tmp_path):
    path = tmp_path / "nested.jsonl"
    path.write_text((json.dumps(NESTED) + "\n") * 3)
    return path


@table(
    ("text", "mapping"),
    [
        (COLUMNS, {"prompt": "qa.question", "completion": "qa.answers.0.text"}),
        (" text = body ", {"text": "body"}),
        ('instruction="a, b",output=c,', {"instruction": "a, b", "output": "c"}),
        (
            "chosen=good,rejected=bad,prompt=q,system=s",
            {"chosen": "good", "rejected": "bad", "prompt": "q", "system": "s"},
        ),
        ("prompt=q,completion=a,label=kept", {"prompt": "q", "completion": "a", "label": "kept"}),
    ],
)
def test_a_mapping_is_one_line_and_survives_a_round_trip(text, mapping):
    assert parse_mapping(text) == mapping
    assert parse_mapping(write_mapping(mapping)) == mapping


@table(
    ("text", "words"),
    [
        ("prompt", "not a role=column pair"),
        ("prompt=", "not a role=column pair"),
        ("question=q, answer=a", "'question' is not a role"),
        ("text=a, text=b", "given twice"),
        ("completion=q", "Add the column for prompt"),
        ("text=a, prompt=b", "form no row format"),
        ("", "form no row format"),
        ("text=a\0", "cannot be printed"),
    ],
)
def test_an_incomplete_mapping_reports_the_missing_columns(text, words):
    with pytest.raises(DataError) as caught:
        parse_mapping(text)
    assert words in str(caught.value) and caught.value.field == "columns" and caught.value.fix


def test_a_path_uses_keys_and_indices_after_an_exact_column_name():
    mapped = apply(
        {"prompt": "qa.question", "completion": "qa.answers.0.text", "system": "a.b", "tools": "qa.none.0"}, NESTED
    )
    assert mapped == {"prompt": "a", "completion": "b", "system": "dotted"}
    assert apply({"text": "qa.answers.1.text"}, NESTED) == {}


def test_rows_are_read_through_a_mapping(nested):
    examples = [example for _, _, example in read_numbered(nested, COLUMNS) if example]
    assert [(example.prompt, example.answer) for example in examples] == [("a", "b")] * 3
    inspection = inspect(nested, columns=COLUMNS)
    assert (inspection.format, inspection.counts, inspection.trainable, inspection.problems) == (
        "mapped",
        {"mapped": 3},
        True,
        [],
    )
    assert inspection.reason == (
        "column mapping: prompt from qa.question and completion from qa.answers.0.text, read as prompt/completion"
    )


def test_a_mapping_to_missing_columns_is_reported_with_the_file_s_names(nested):
    inspection = inspect(nested, columns="prompt=qa.question, completion=qa.answers.7.text")
    assert [(issue.field, issue.message, issue.rows) for issue in inspection.problems if issue.level == "error"] == [
        ("qa.answers.7.text", "is missing.", 3)
    ]


def test_every_role_is_used():
    plans = [
        "messages=a,tools=b,system=c",
        "prompt=a,completion=b,label=c",
        "instruction=a,input=b,output=c,history=d",
        "text=a",
    ]
    plans += ["chosen=a,rejected=b", "source=a,target=b"]
    assert {role for plan in plans for role in parse_mapping(plan)} == set(ROLES)


# Kept with the data set


def test_a_data_set_of_unknown_format_can_be_stored_and_mapped_later(database, nested):
    dataset = datasets.add_file(path=nested, name="nested.jsonl")
    assert (dataset.row_format, dataset.columns_map) == ("unknown", None)
    mapped = datasets.save_mapping(dataset.id, COLUMNS)
    assert (mapped.row_format, mapped.columns_map, mapped.counts, mapped.warnings) == (
        "mapped",
        COLUMNS,
        {"mapped": 3},
        [],
    )
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=dataset.id).columns_map == COLUMNS
    assert datasets.save_mapping(dataset.id, None).row_format == "unknown"


def test_a_mapping_without_trainable_rows_is_not_saved(database, nested):
    dataset = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.save_mapping(dataset.id, COLUMNS)
    with pytest.raises(Refused) as caught:
        datasets.save_mapping(dataset.id, "text=id")
    assert (caught.value.file, caught.value.line, caught.value.field) == ("nested.jsonl", 1, "id")
    assert [issue.rows for issue in caught.value.issues] == [3]
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=dataset.id).columns_map == COLUMNS


def test_a_data_set_without_its_file_is_reported(home, nested):
    dataset = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.path_of(dataset).unlink()
    with pytest.raises(Refused, match="cannot be read: No such file"):
        datasets.save_mapping(dataset.id, COLUMNS)


# Kept with the run


@pytest.fixture
def config(nested, tmp_path, monkeypatch):
    monkeypatch.setattr(celery_app, "notify", lambda _: True)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tokenizer.json").write_text("{}")

    def make(**settings):
        return RunConfig.model_validate({"model": str(folder), "data": str(nested)} | settings)

    return make


def problem_of(config):
    with pytest.raises(ConfigError) as caught:
        submit.submit(config)
    [problem] = caught.value.problems
    return problem


def test_a_run_stores_the_mapping_of_its_data_set(database, config, nested):
    dataset = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.save_mapping(dataset.id, COLUMNS)
    run = submit.submit(config(data=dataset.id))
    datasets.save_mapping(dataset.id, "text=a.b")
    assert run.config["columns"] == COLUMNS


def test_a_run_s_mapping_overrides_the_data_set_s(database, config, nested):
    dataset = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.save_mapping(dataset.id, COLUMNS)
    assert submit.submit(config(data=dataset.id, columns='text="a.b"')).config["columns"] == 'text="a.b"'


def test_a_file_can_be_submitted_with_a_mapping(database, config):
    run = submit.submit(config(columns=COLUMNS))
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=run.dataset_id).columns_map == COLUMNS


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (None, "no known format"),
        ("text=id", "id is a number (1), not text."),
        ("completion=qa.question", "is incomplete"),
        ("prompt=qa.question", "task sft needs prompts with answers"),
    ],
)
def test_data_that_cannot_train_is_refused_and_not_stored(database, config, columns, words):
    problem = problem_of(config(columns=columns))
    assert words in problem.message and problem.fix
    with db.read() as session:
        assert datasets.listing(session=session) == []


def test_validation_data_without_a_needed_mapping_is_refused(database, config, nested, tmp_path):
    datasets.add_file(path=nested, name="nested.jsonl")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    problem = problem_of(config(data=str(tmp_path / "rows.jsonl"), validation_data=str(nested)))
    assert problem.field == "validation_data" and "no known format" in problem.message


def test_validation_data_keeps_its_own_saved_mapping(database, config, nested, tmp_path):
    datasets.save_mapping(datasets.add_file(path=nested, name="nested.jsonl").id, COLUMNS)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    run = submit.submit(config(data=str(tmp_path / "rows.jsonl"), validation_data=str(nested)))
    [held_out] = sources(run.config["validation_data"])
    assert (run.config["columns"], held_out.columns) == (None, COLUMNS)


def test_validation_data_is_checked_with_the_same_mapping(database, config, tmp_path):
    (tmp_path / "held_out.jsonl").write_text('{"qa": {"question": "a"}}\n')
    problem = problem_of(config(columns=COLUMNS, validation_data=str(tmp_path / "held_out.jsonl")))
    assert (problem.field, problem.message) == ("validation_data", "row 1, qa.answers.0.text is missing.")

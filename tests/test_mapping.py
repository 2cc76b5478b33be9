"""A mapping says which columns hold what: it is checked, applied, and kept with the data set and with the run."""

import json

import pytest

from training.config import RunConfig
from training.failure import DataError
from training.fields import ConfigError
from training.inspection import inspect
from training.mapping import ROLES, apply, parse_mapping, write_mapping
from training.rows import read_examples
from worker import database as db
from worker import datasets, queue, submit
from worker.datasets import Refused

NESTED = {"id": 1, "qa": {"question": "a", "answers": [{"text": "b"}]}, "a.b": "dotted"}
COLUMNS = "prompt=qa.question, completion=qa.answers.0.text"


@pytest.fixture
def nested(tmp_path):
    path = tmp_path / "nested.jsonl"
    path.write_text((json.dumps(NESTED) + "\n") * 3)
    return path


@pytest.mark.parametrize(
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
def test_a_mapping_is_one_line_of_pairs_and_is_written_back_the_same(text, mapping):
    assert parse_mapping(text) == mapping
    assert parse_mapping(write_mapping(mapping)) == mapping


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompt", "no role=column pair"),
        ("prompt=", "no role=column pair"),
        ("question=q, answer=a", "'question' is no role"),
        ("text=a, text=b", "given twice"),
        ("prompt=q", "which column holds completion"),
        ("text=a, prompt=b", "make no row"),
        ("", "make no row"),
        ("text=a\0", "cannot be printed"),
    ],
)
def test_a_mapping_that_makes_no_row_says_what_is_missing(text, words):
    with pytest.raises(DataError) as caught:
        parse_mapping(text)
    assert words in str(caught.value) and caught.value.field == "columns" and caught.value.fix


def test_a_path_goes_by_keys_and_places_and_a_column_of_that_very_name_comes_first():
    found = apply(
        {"prompt": "qa.question", "completion": "qa.answers.0.text", "system": "a.b", "tools": "qa.none.0"}, NESTED
    )
    assert found == {"prompt": "a", "completion": "b", "system": "dotted"}
    assert apply({"text": "qa.answers.1.text"}, NESTED) == {}


def test_rows_are_read_through_a_mapping(nested):
    assert [(example.prompt, example.answer) for example in read_examples(nested, COLUMNS)] == [("a", "b")] * 3
    found = inspect(nested, columns=COLUMNS)
    assert (found.format, found.counts, found.trainable, found.problems) == ("mapped", {"mapped": 3}, True, [])
    assert found.reason == (
        "a mapping says so: prompt from qa.question and completion from qa.answers.0.text, read as prompt/completion"
    )


def test_a_mapping_that_leads_nowhere_is_said_by_the_file_s_own_names(nested):
    found = inspect(nested, columns="prompt=qa.question, completion=qa.answers.7.text")
    assert [(issue.field, issue.message, issue.rows) for issue in found.problems if issue.level == "error"] == [
        ("qa.answers.7.text", "is missing.", 3)
    ]


def test_every_role_is_of_use():
    plans = ["messages=a,tools=b,system=c", "prompt=a,completion=b,label=c", "instruction=a,input=b,output=c", "text=a"]
    plans += ["chosen=a,rejected=b", "source=a,target=b"]
    assert {role for plan in plans for role in parse_mapping(plan)} == set(ROLES)


# Kept with the data set


def test_a_set_of_no_known_format_is_kept_until_a_mapping_makes_it_one(database, nested):
    kept = datasets.add_file(path=nested, name="nested.jsonl")
    assert (kept.shape, kept.columns_map) == ("unknown", None)
    mapped = datasets.save_mapping(kept.id, COLUMNS)
    assert (mapped.shape, mapped.columns_map, mapped.counts, mapped.warnings) == ("mapped", COLUMNS, {"mapped": 3}, [])
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=kept.id).columns_map == COLUMNS
    assert datasets.save_mapping(kept.id, None).shape == "unknown"


def test_a_mapping_under_which_nothing_trains_changes_nothing(database, nested):
    kept = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.save_mapping(kept.id, COLUMNS)
    with pytest.raises(Refused) as caught:
        datasets.save_mapping(kept.id, "text=id")
    assert (caught.value.file, caught.value.line, caught.value.field) == ("nested.jsonl", 1, "id")
    assert [issue.rows for issue in caught.value.problems] == [3]
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=kept.id).columns_map == COLUMNS


def test_a_set_whose_file_is_gone_says_so(home, nested):
    kept = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.path_of(kept).unlink()
    with pytest.raises(Refused, match="cannot be read: No such file"):
        datasets.save_mapping(kept.id, COLUMNS)


# Kept with the run


@pytest.fixture
def config(nested, tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "ring", lambda _: True)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")

    def make(**settings):
        return RunConfig.model_validate({"model": str(folder), "data": str(nested)} | settings)

    return make


def problem_of(config):
    with pytest.raises(ConfigError) as caught:
        submit.submit(config)
    [problem] = caught.value.problems
    return problem


def test_a_run_keeps_the_mapping_that_its_data_set_had(database, config, nested):
    kept = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.save_mapping(kept.id, COLUMNS)
    run = submit.submit(config(data=kept.id))
    datasets.save_mapping(kept.id, "text=a.b")
    assert run.config["columns"] == COLUMNS


def test_a_run_s_own_mapping_comes_before_the_data_set_s(database, config, nested):
    kept = datasets.add_file(path=nested, name="nested.jsonl")
    datasets.save_mapping(kept.id, COLUMNS)
    assert submit.submit(config(data=kept.id, columns='text="a.b"')).config["columns"] == 'text="a.b"'


def test_a_file_is_submitted_with_a_mapping_of_its_own(database, config):
    run = submit.submit(config(columns=COLUMNS))
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=run.dataset_id).columns_map == COLUMNS


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (None, "no known format"),
        ("text=id", "id is a number (1), not text."),
        ("prompt=qa.question", "is not whole"),
    ],
)
def test_data_that_cannot_train_are_not_submitted_and_nothing_is_kept(database, config, columns, words):
    problem = problem_of(config(columns=columns))
    assert words in problem.message and problem.fix
    with db.read() as session:
        assert datasets.listing(session=session) == []


def test_held_out_data_that_need_a_mapping_which_the_run_has_not_are_refused(database, config, nested, tmp_path):
    datasets.save_mapping(datasets.add_file(path=nested, name="nested.jsonl").id, COLUMNS)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    problem = problem_of(config(data=str(tmp_path / "rows.jsonl"), validation_data=str(nested)))
    assert problem.field == "validation_data" and "no known format" in problem.message


def test_held_out_data_are_checked_under_the_same_mapping(database, config, tmp_path):
    (tmp_path / "held_out.jsonl").write_text('{"qa": {"question": "a"}}\n')
    problem = problem_of(config(columns=COLUMNS, validation_data=str(tmp_path / "held_out.jsonl")))
    assert (problem.field, problem.message) == ("validation_data", "row 1, qa.answers.0.text is missing.")

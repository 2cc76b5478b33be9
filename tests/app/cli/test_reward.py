"""`lathe reward`: rewards tried on rows of a file, by their expected answers and by given ones."""

import json

import pytest
from commands import lathe

from app.cli.evaluate import request
from app.cli.options import CommandError
from app.cli.reward import lines, run_settings
from app.web.rest.evaluations import AskedTrial, score_rows
from training.config.fields import parse
from training.config.machine import Machine
from training.config.task import Task
from training.errors import UserError
from training.rewards.rewards import rewards_of
from training.rewards.sample_rows import texts
from training.rules import check
from worker import allowed_paths

CODE = """
def city(prompt, answer, expected, row):
    return float(row["city"] in answer)
def total(prompt, answer, expected, row):
    return row["total"]
"""
ROWS = [
    {"prompt": "Which city?", "completion": '{"city": "Bonn"}', "city": "Bonn", "total": 3},
    {"prompt": "And now?", "completion": '{"city": "Kiel"}', "city": "Bonn"},
]

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(file)


def test_expected_answers_are_scored_by_names_functions_and_options(data, tmp_path):
    (tmp_path / "own.py").write_text(CODE)
    options = '{"name": "short", "reward": "length", "most": 15}'
    result = lathe("reward", "json_valid", f"{tmp_path}/own.py:city*2", options, "--data", data, "--json")
    found = json.loads(result.stdout)
    assert [row["scores"] for row in found["rows"]] == [
        {"json_valid": 1, "own.py:city": 1, "short": 0}, {"json_valid": 1, "own.py:city": 0, "short": 0},
    ]  # fmt: skip
    assert [(row["row"], row["answer"], row["total"]) for row in found["rows"]] == [
        (1, '{"city": "Bonn"}', 3), (2, '{"city": "Kiel"}', 1),
    ]  # fmt: skip
    assert [one["mean"] for one in found["rewards"]] == [1, 0.5, 0]
    assert (found["troubles"], result.exit_code) == ({}, 0)


def test_a_file_alone_is_each_of_its_functions_and_troubles_are_named(data, tmp_path):
    (tmp_path / "own.py").write_text(CODE)
    result = lathe("reward", str(tmp_path / "own.py"), "--data", data)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "ROW   own.py:city  own.py:total  TOTAL  ANSWER",
        '1               1             3      4  {"city": "Bonn"}',
        '2               0             -      0  {"city": "Kiel"}',
        "mean          0.5             3      2",
        "",
        "own.py:total: no score for 1 row. row 2, own.py, line 5: KeyError: 'total'",
    ]


def test_given_answers_are_scored_as_lines_or_as_records_of_an_evaluation(data, tmp_path):
    plain, records = tmp_path / "answers.txt", tmp_path / "answers.jsonl"
    plain.write_text("Bonn\nKiel\n")
    records.write_text(json.dumps({"row": 1, "answer": '{"city": "Kiel"}'}) + "\n")
    found = json.loads(lathe("reward", "exact_match,contains", "--data", data, "--answers", plain, "--json").stdout)
    assert [(row["row"], row["answer"], row["total"]) for row in found["rows"]] == [(1, "Bonn", 0), (2, "Kiel", 0)]
    found = json.loads(lathe("reward", "exact_match", "--data", data, "--answers", records, "--json").stdout)
    assert [(row["row"], row["total"]) for row in found["rows"]] == [(2, 1)]
    plain.write_text('\n{"city": "Kiel"}\n')  # an empty answer is an answer
    found = json.loads(lathe("reward", "exact_match", "--data", data, "--answers", plain, "--json").stdout)
    assert [(row["row"], row["total"]) for row in found["rows"]] == [(1, 0), (2, 1)]
    plain.write_text("Bonn\n" * 1001)
    result = lathe("reward", "exact_match", "--data", data, "--answers", plain)
    assert "are 1,001. Send at most 1,000" in result.stderr
    result = lathe("reward", "contains", "--data", data, "--answers", plain, "--rows", 1)
    assert len(result.stdout.splitlines()) == 3


def test_what_is_wrong_is_named(data, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "odd.jsonl").write_text('{"text": 3}\n')
    for arguments, message in (
        (["bleu", "--data", data], "is unknown. Rewards are exact_match"),
        (["no.py:f", "--data", data], "cannot be read"),
        ([f"{tmp_path}/empty.py", "--data", data], "has no function"),
        (["regex", "--data", data], "needs the option pattern"),
        (["{", "--data", data], "is no reward as JSON"),
        (["exact_match", "--data", "nowhere.jsonl"], "is neither a file nor a data set id"),
        (["exact_match", "--data", str(tmp_path / "odd.jsonl")], "data"),
        (["exact_match", "--data", data, "--answers", data], "has no answer in line 1"),
    ):
        result = lathe("reward", *arguments)
        assert result.exit_code == 1
        assert message in result.stderr


def test_accounts_may_not_send_code(data, monkeypatch):
    monkeypatch.setattr("app.access.callers.Caller.allowed", allowed_paths.allowed())
    with pytest.raises(UserError, match="is code, which only the user who runs the server may run"):
        score_rows(AskedTrial(rewards="own.py:city", data=data, own={"own.py": CODE}))


def test_a_conversation_is_scored_by_its_last_answer():
    from training.data.example import Example

    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert texts(Example(messages=messages)) == ("user: a\n\nassistant: b\n\nuser: c", "d")


def test_a_reward_that_applies_to_no_row_has_a_dash():
    reward = {"name": "boxed", "kind": "boxed", "weight": 1.0, "options": {}, "mean": None}
    row = {"row": 1, "prompt": "p", "expected": "", "answer": "a", "scores": {"boxed": None}, "total": None}
    text = lines({"rewards": [reward], "rows": [row], "troubles": {}, "seconds": 0.1})
    assert text[0].splitlines()[1].split() == ["1", "-", "-", "a"]


def test_a_metric_as_json_can_name_a_file(tmp_path):
    (tmp_path / "own.py").write_text(CODE)
    entry = {"reward": f"{tmp_path}/own.py:city", "name": "town"}
    options = dict.fromkeys(("source", "rows", "columns", "max_new_tokens", "decoding", "judge_url", "judge_model"))
    found = request(options | {"metrics": ["f1", json.dumps(entry)], "lm_eval": []})
    assert json.loads(found["metrics"][1]) == {"reward": "own.py:city", "name": "town"}
    assert found["own"] == {"own.py": CODE}


def test_a_model_is_tried_by_a_run_that_stops_before_its_first_step(data, tmp_path):
    own = {"own.py": CODE}
    options = {"model": "m", "data": data, "columns": None, "max_completion_length": 9, "rows": 4, "answers": None}
    entries = ["own.py:city*2", {"reward": "own.py:total", "name": "sum"}, "json_valid"]
    settings = run_settings(entries, own, options)
    config = parse(settings)
    assert [(reward.name, reward.weight) for reward in rewards_of(config)] == [
        ("city", 2),
        ("sum", 1),
        ("json_valid", 1),
    ]
    assert (config.task, config.baseline_prompts, config.stop_after_baseline) == (Task.GRPO, 4, True)
    assert [conflict.reason for conflict in check(config, Machine()) if conflict.blocking] == []


def test_rewards_of_a_run_are_in_one_file(data):
    options = {
        "model": "m",
        "data": data,
        "columns": None,
        "max_completion_length": None,
        "rows": None,
        "answers": None,
    }
    with pytest.raises(CommandError, match=r"a\.py, b\.py.* are several files, and a run has one"):
        run_settings(["a.py:city", "b.py:city"], {"a.py": CODE, "b.py": CODE}, options)
    with pytest.raises(CommandError, match="--model exclude each other"):
        run_settings(["exact_match"], {}, options | {"answers": "answers.jsonl"})

"""`lathe dataset`: checks files without server or database, and manages stored data sets."""

import json
import threading

import pytest
from commands import answer, lathe
from environment import use
from prepared import STARTER

from worker.datasets import row_search

KEYS = {
    "format", "reason", "rows", "tokens", "truncated_rows", "untrained_rows", "duplicate_rows", "longest_rows", "padding_waste",
    "problems", "trainable",
}  # fmt: skip


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": 5}\n')
    return path


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks with an empty data folder, which the check must not create. A function to what it prints."""
    nowhere = tmp_path / "nowhere"
    use(monkeypatch, DATA_DIR=str(nowhere))

    def checked(file, *arguments, exit_code=0):
        done = lathe("dataset", "check", file, "--json", *arguments)
        assert done.exit_code == exit_code, done.output
        return json.loads(done.stdout), done.stderr

    yield checked
    assert not nowhere.exists()


@pytest.mark.slow
def test_check_counts_tokens_without_a_server_and_stores_nothing(check, rows):
    result, progress = check(
        rows, "--model", STARTER, "--max-length", "64", "--micro-batch", "2", "--num-processes", "2"
    )
    assert set(result) >= KEYS
    assert (result["format"], result["rows"], result["trainable"]) == ("prompt/completion", 40, True)
    assert result["tokens"]["max"] > 64 and result["tokens"]["total"] > 40
    assert (result["truncated_rows"], result["untrained_rows"], result["duplicate_rows"]) == (1, 1, 1)
    assert result["longest_rows"][0] == 40
    assert 0 < result["padding_waste"] < 1
    assert {"step", "rank", "rows", "tokens"} <= set(result["worst_batches"][0])
    [problem] = result["problems"]
    assert (problem["file"], problem["line"], problem["level"], problem["rows"]) == ("sums.jsonl", 40, "warning", 1)
    assert "no loss tokens" in problem["message"] and "--max-length" in problem["fix"]
    assert "40 rows read" in progress


@pytest.mark.slow
def test_check_of_an_unusable_data_set_exits_with_1_and_prints_file_row_and_fix(check, bad):
    result, _ = check(bad, "--model", STARTER, exit_code=1)
    assert set(result) >= KEYS
    assert result["trainable"] is False
    assert (result["tokens"], result["truncated_rows"]) == (
        {"median": None, "p95": None, "max": None, "total": None},
        None,
    )
    [problem] = [problem for problem in result["problems"] if problem["level"] == "error"]
    assert (problem["file"], problem["line"], problem["field"]) == ("bad.jsonl", 2, "completion")
    assert problem["message"] and problem["fix"]


@pytest.mark.slow
def test_check_prints_a_verdict_and_the_fix(bad, rows):
    refused = lathe("dataset", "check", bad)
    assert refused.exit_code == 1
    assert "bad.jsonl cannot train." in refused.stdout and "bad.jsonl, row 2, completion: is a number" in refused.stdout
    fine = lathe("dataset", "check", rows)
    assert (
        fine.exit_code == 0 and "sums.jsonl can train." in fine.stdout and "prompt/completion, because" in fine.stdout
    )


@pytest.mark.slow
def test_check_accepts_a_mapping_and_finds_training_rows_in_the_validation_data(check, tmp_path):
    listed = [{"q": f"question {n}", "a": f"answer {n}"} for n in range(6)]
    alike = {"q": "Question 4", "a": "answer  4"}
    for name, part in (("train", listed), ("val", [listed[2], {"q": "new", "a": "row"}, alike])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    mapped = ["--columns", "prompt=q, completion=a", "--validation", str(tmp_path / "val.jsonl")]
    result, _ = check(tmp_path / "train.jsonl", "--model", STARTER, *mapped)
    assert result["format"] == "mapped"
    assert (result["validation"]["leaked_rows"], result["validation"]["leaked_examples"]) == (1, [[1, 3]])
    assert (result["validation"]["near_leaked_rows"], result["validation"]["near_leaked_examples"]) == (2, [1, 3])
    message = "2 rows are near duplicates of rows in train.jsonl, 1 of them equal (such as 1, 3)"
    assert message in result["problems"][-1]["message"]


@pytest.mark.slow
def test_a_model_without_a_tokenizer_is_a_problem_in_the_report(check, rows, tmp_path):
    (tmp_path / "empty").mkdir()
    result, _ = check(rows, "--model", str(tmp_path / "empty"), exit_code=1)
    assert result["problems"][0]["field"] == "model" and result["trainable"] is False


def test_a_missing_file_is_named_in_the_error(tmp_path):
    result = lathe("dataset", "check", tmp_path / "none.jsonl")
    assert result.exit_code == 1 and "none.jsonl" in result.stderr and "does not exist" in result.stderr


def test_a_data_set_is_added_listed_shown_and_removed(database, rows):
    added = answer("dataset", "add", rows, "--name", "my sums")
    assert (added["name"], added["rows"], added["format"]) == ("my sums", 40, "prompt/completion")
    assert [item["id"] for item in answer("dataset", "list", "--search", "my")] == [added["id"]]
    assert answer("dataset", "show", added["id"][:6])["sha256"] == added["sha256"]
    shown = " ".join(lathe("dataset", "show", added["id"]).stdout.split())
    assert "Rows 40" in shown and f"SHA-256 {added['sha256']}" in shown
    assert answer("dataset", "remove", added["id"], "--yes") == {"removed": added["id"]}
    assert lathe("dataset", "list").stdout.startswith("No data sets yet.")


def test_rows_are_printed_from_any_number_on_and_searched(home, rows):
    added = answer("dataset", "add", rows)
    part = answer("dataset", "rows", added["id"], "--offset", "38", "--limit", "5")
    assert ([row["row"] for row in part["rows"]], part["total"], part["next"]) == ([39, 40], 40, None)
    shown = lathe("dataset", "rows", added["id"], "--limit", "2").stdout
    assert shown.startswith("row 1\n  prompt: ") and "2 rows of 40 rows and more (--offset 2)." in shown
    words = part["rows"][0]["values"]["prompt"].upper()
    found = answer("dataset", "rows", added["id"], "--search", words)
    assert 39 in [row["row"] for row in found["rows"]] and found["complete"]
    assert lathe("dataset", "rows", added["id"], "--search", "no such text").stdout == "No row contains the text.\n"


def test_a_page_of_a_search_that_is_full_is_printed_before_the_search_ends(home, rows, monkeypatch):
    ended = threading.Event()

    def unfinished(search):
        for number in (1, 2, 3):
            search._take({"row": number, "values": {"text": "five"}, "cut": []})
        ended.wait()

    monkeypatch.setattr(row_search.Search, "run", unfinished)
    data = answer("dataset", "add", rows)["id"]
    try:
        printed = lathe("dataset", "rows", data, "--search", "five", "--limit", "2").stdout
    finally:
        ended.set()
    assert printed.splitlines()[-1] == "2 rows of 3 found so far and more (--offset 2)."


def test_several_files_become_one_data_set(home, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"text\n{name}\n")
    added = answer("dataset", "add", tmp_path / "a.csv", tmp_path / "b.csv")
    assert (added["name"], added["rows"]) == ("a.csv + b.csv", 2)


def test_a_mapping_is_saved_with_the_data_set(home, tmp_path):
    (tmp_path / "odd.jsonl").write_text('{"q": "a", "a": "b"}\n')
    columns = "prompt=q, completion=a"
    assert answer("dataset", "add", tmp_path / "odd.jsonl", "--columns", columns)["columns_map"] == columns


def test_all_problems_of_a_refused_file_are_reported(home, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "completion": 5}\n{"prompt": "d"}\n')
    problems = answer("dataset", "add", path, exit_code=1)["error"]
    assert len(problems) == 2 and all(problem["fix"] for problem in problems)
    assert problems[1]["field"] == "bad.jsonl, row 2, completion"


def test_removing_asks_for_confirmation(home, rows):
    from click.testing import CliRunner

    from app.cli.__main__ import main

    added = answer("dataset", "add", rows)
    declined = CliRunner().invoke(main, ["dataset", "remove", added["id"]], input="n\n")
    assert declined.exit_code == 1 and "Delete sums.jsonl (40 rows)?" in declined.stderr
    assert answer("dataset", "list")


@pytest.mark.parametrize("identity", ["nosuchset", "ab"])
def test_a_missing_data_set_is_named_in_the_error(home, identity):
    assert answer("dataset", "show", identity, exit_code=1)["error"][0]["value"] == identity


@pytest.mark.parametrize(
    "name", ["alpaca_en_demo.json", "chatalpaca-1k.jsonl", "dpo_en_demo.json", "multiply-1k.jsonl"]
)
def test_formats_of_real_data_sets_are_detected(real_data, name):
    expected = {
        "alpaca_en_demo.json": ("alpaca", 999),
        "chatalpaca-1k.jsonl": ("messages", 989),
        "dpo_en_demo.json": ("preference", 300),
        "multiply-1k.jsonl": ("messages", 1000),
    }[name]
    output = answer("dataset", "check", real_data / name)
    assert (output["format"], output["rows"], output["trainable"]) == (*expected, True)


def test_check_with_a_task_refuses_rows_of_another_format(rows):
    assert lathe("dataset", "check", str(rows), "--task", "sft").exit_code == 0
    done = lathe("dataset", "check", str(rows), "--task", "dpo", "--json")
    assert done.exit_code == 1
    result = json.loads(done.stdout)
    assert not result["trainable"]
    assert "task dpo needs chosen and rejected answers" in result["problems"][0]["message"]


def test_check_refuses_images_and_suggests_a_mapping(tmp_path):
    pictures = tmp_path / "pictures.jsonl"
    pictures.write_text('{"prompt": "<image>\\nWhat is it?", "completion": "A cat.", "image": "cat.png"}\n')
    done = lathe("dataset", "check", str(pictures), "--json")
    result = json.loads(done.stdout)
    assert (done.exit_code, result["trainable"]) == (1, False)
    assert (result["problems"][0]["field"], "Lathe trains on text" in result["problems"][0]["fix"]) == ("image", True)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "a", "answer": "b", "solution": "c"}\n')
    assert "--columns 'prompt=question, completion=answer'" in lathe("dataset", "check", str(questions)).stdout


def test_check_counts_rows_whose_texts_the_template_drops(check, tmp_path):
    file = tmp_path / "tools.jsonl"
    calls = [{"function": {"name": "lamp", "arguments": {"on": True}}}]
    messages = [{"role": "user", "content": "Light!"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    file.write_text((json.dumps({"messages": messages}) + "\n") * 3)
    result, _ = check(file, "--model", STARTER, exit_code=1)
    [problem] = [problem for problem in result["problems"] if problem["level"] == "error"]
    assert "tool_calls" in problem["message"] and (problem["rows"], problem["line"]) == (3, 1)

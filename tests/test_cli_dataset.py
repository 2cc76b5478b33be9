"""`lathe dataset`: a file checked without server or database, and the store from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import answer, lathe

ROOT = Path(__file__).parents[1]
KEYS = {
    "format", "reason", "rows", "tokens", "truncated_rows", "untrained_rows", "duplicate_rows", "longest_rows", "padding_waste",
    "problems", "trainable",
}  # fmt: skip


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": 5}\n')
    return path


def check(file, *arguments, exit_code=0):
    """A real process, in a place where there is no installation and none may be made."""
    command = [sys.executable, "-m", "app.cli", "dataset", "check", str(file), "--json", *arguments]
    nowhere = file.parent / "nowhere"
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "LATHE_DATA_DIR": str(nowhere),
        "HOME": str(file.parent),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=file.parent, check=False)
    assert done.returncode == exit_code, done.stderr + done.stdout
    assert not nowhere.exists()
    return json.loads(done.stdout), done.stderr


def test_check_counts_every_token_without_a_server_and_keeps_nothing(rows):
    found, told = check(
        rows, "--model", "static/starter", "--max-length", "64", "--micro-batch", "2", "--num-processes", "2"
    )
    assert set(found) >= KEYS
    assert (found["format"], found["rows"], found["trainable"]) == ("prompt/completion", 40, True)
    assert found["tokens"]["max"] > 64 and found["tokens"]["total"] > 40
    assert (found["truncated_rows"], found["untrained_rows"], found["duplicate_rows"]) == (1, 1, 1)
    assert found["longest_rows"][0] == 40
    assert 0 < found["padding_waste"] < 1
    assert {"step", "rank", "rows", "tokens"} <= set(found["worst_batches"][0])
    [problem] = found["problems"]
    assert (problem["file"], problem["line"], problem["level"], problem["rows"]) == ("sums.jsonl", 40, "warning", 1)
    assert "teach" in problem["message"] and "--max-length" in problem["fix"]
    assert "40 rows read" in told


def test_check_of_a_set_that_cannot_train_exits_with_1_and_names_file_row_and_cure(bad):
    found, _ = check(bad, "--model", "static/starter", exit_code=1)
    assert set(found) >= KEYS
    assert found["trainable"] is False
    assert (found["tokens"], found["truncated_rows"]) == (
        {"median": None, "p95": None, "max": None, "total": None},
        None,
    )
    [problem] = [problem for problem in found["problems"] if problem["level"] == "error"]
    assert (problem["file"], problem["line"], problem["field"]) == ("bad.jsonl", 2, "completion")
    assert problem["message"] and problem["fix"]


def test_check_for_people_gives_a_verdict_and_the_cure(bad, rows):
    refused = lathe("dataset", "check", bad)
    assert refused.exit_code == 1
    assert "bad.jsonl cannot train." in refused.stdout and "bad.jsonl, row 2, completion: is a number" in refused.stdout
    fine = lathe("dataset", "check", rows)
    assert (
        fine.exit_code == 0 and "sums.jsonl can train." in fine.stdout and "prompt/completion, because" in fine.stdout
    )


def test_check_takes_a_mapping_and_finds_rows_that_are_held_out_twice(tmp_path):
    listed = [{"q": f"question {n}", "a": f"answer {n}"} for n in range(6)]
    for name, part in (("train", listed), ("val", [listed[2], {"q": "new", "a": "row"}])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    mapped = ["--columns", "prompt=q, completion=a", "--validation", str(tmp_path / "val.jsonl")]
    found, _ = check(tmp_path / "train.jsonl", "--model", "static/starter", *mapped)
    assert found["format"] == "mapped"
    assert (found["validation"]["leaked_rows"], found["validation"]["leaked_examples"]) == (1, [[1, 3]])
    assert "in train.jsonl too" in found["problems"][-1]["message"]


def test_a_model_without_tokenizer_is_a_problem_like_any_other(rows, tmp_path):
    (tmp_path / "empty").mkdir()
    found, _ = check(rows, "--model", str(tmp_path / "empty"), exit_code=1)
    assert found["problems"][0]["field"] == "model" and found["trainable"] is False


def test_a_file_that_is_not_there_is_named(tmp_path):
    result = lathe("dataset", "check", tmp_path / "none.jsonl")
    assert result.exit_code == 1 and "none.jsonl" in result.stderr and "does not exist" in result.stderr


def test_a_data_set_is_added_listed_shown_and_removed(database, rows):
    added = answer("dataset", "add", rows, "--name", "my sums")
    assert (added["name"], added["rows"], added["format"]) == ("my sums", 40, "prompt/completion")
    assert [one["id"] for one in answer("dataset", "list", "--search", "my")] == [added["id"]]
    assert answer("dataset", "show", added["id"][:6])["sha256"] == added["sha256"]
    shown = " ".join(lathe("dataset", "show", added["id"]).stdout.split())
    assert "Rows 40" in shown and f"sha256 {added['sha256']}" in shown
    assert answer("dataset", "remove", added["id"], "--yes") == {"removed": added["id"]}
    assert lathe("dataset", "list").stdout.startswith("No data sets yet.")


def test_several_files_become_one_set(home, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"text\n{name}\n")
    added = answer("dataset", "add", tmp_path / "a.csv", tmp_path / "b.csv")
    assert (added["name"], added["rows"]) == ("a.csv + b.csv", 2)


def test_a_mapping_is_kept_with_the_set(home, tmp_path):
    (tmp_path / "odd.jsonl").write_text('{"q": "a", "a": "b"}\n')
    columns = "prompt=q, completion=a"
    assert answer("dataset", "add", tmp_path / "odd.jsonl", "--columns", columns)["columns_map"] == columns


def test_everything_wrong_with_a_refused_file_is_told(home, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "completion": 5}\n{"prompt": "d"}\n')
    problems = answer("dataset", "add", path, exit_code=1)["error"]
    assert len(problems) == 2 and all(problem["fix"] for problem in problems)
    assert "bad.jsonl, row 2, completion" in problems[1]["message"]


def test_removing_asks_first(home, rows):
    from click.testing import CliRunner

    from app.cli import main

    added = answer("dataset", "add", rows)
    kept = CliRunner().invoke(main, ["dataset", "remove", added["id"]], input="n\n")
    assert kept.exit_code == 1 and "Delete sums.jsonl (40 rows)?" in kept.stderr
    assert answer("dataset", "list")


@pytest.mark.parametrize("identity", ["nosuchset", "ab"])
def test_a_data_set_that_does_not_exist_is_named(home, identity):
    assert identity in answer("dataset", "show", identity, exit_code=1)["error"][0]["message"]


@pytest.mark.parametrize(
    "name", ["alpaca_en_demo.json", "chatalpaca-1k.jsonl", "dpo_en_demo.json", "multiply-1k.jsonl"]
)
def test_real_data_sets_are_known_for_what_they_are(real_data, name):
    expected = {
        "alpaca_en_demo.json": ("alpaca", 999),
        "chatalpaca-1k.jsonl": ("messages", 989),
        "dpo_en_demo.json": ("preference", 300),
        "multiply-1k.jsonl": ("messages", 1000),
    }[name]
    found = answer("dataset", "check", real_data / name)
    assert (found["format"], found["rows"], found["trainable"]) == (*expected, True)

"""Tokenizing in the background: made once, found by everyone, whole or absent, and harmless whatever the model's template does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny import TEMPLATE, make_model

from training import token_store
from training.failure import DataError
from training.tokenizing import failure_file, find_or_make
from worker import database, datasets, measuring, token_cache
from worker.measuring import Measurement
from worker.settings import get_settings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", 50)


def write(path: Path, rows: int) -> Path:
    lines = [
        json.dumps({"messages": [turn("user", f"ask {n}"), turn("assistant", f"say {n}" * (1 + n % 7))]})
        for n in range(rows)
    ]
    path.write_text("\n".join(lines))
    return path


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def measured(path: Path, model: Path, **more: object) -> Path:
    sha = token_store.file_fingerprint(path)
    measuring.measure(path, sha, str(model), **more)
    folder = measuring.wait(lambda: measuring.state(sha, str(model)))
    for thread in threading.enumerate():  # the process has ended too, and holds its lock no more
        if thread.name.startswith("tokenizing"):
            thread.join()
    return folder


def failed(path: Path, model: Path) -> Measurement:
    with pytest.raises(DataError):
        measured(path, model)
    found = measuring.state(token_store.file_fingerprint(path), str(model))
    assert found.status == "failed" and found.problem
    return found


def bad_model(folder: Path, model: Path, template: str) -> Path:
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_set_is_measured_once_and_found_afterwards(home: Path, data: Path, model: Path) -> None:
    sha = token_store.file_fingerprint(data)
    assert measuring.state(sha, str(model)).status == "absent"
    assert measuring.measure(data, sha, str(model), rows=50).status == "running"
    assert measuring.measure(data, sha, str(model)).status in ("running", "done")
    folder = measuring.wait(lambda: measuring.state(sha, str(model)))
    made = folder.stat().st_ino
    assert measuring.measure(data, sha, str(model)).store == folder
    assert folder.stat().st_ino == made
    opened = token_store.open_store(folder)
    assert (opened.rows, len(opened.lengths)) == (50, 50)


def test_a_run_takes_what_the_page_has_made(home: Path, data: Path, model: Path) -> None:
    from transformers import AutoTokenizer

    folder = measured(data, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = find_or_make(data, get_settings().tokens_dir, tokenizer, str(model), None, None, lambda done, total: None)
    assert found.folder == folder


def test_another_template_or_other_data_or_another_mapping_is_another_store(
    home: Path, tmp_path: Path, data: Path, model: Path
) -> None:
    other = bad_model(tmp_path / "other", model, TEMPLATE + " ")
    folders = {
        measuring.folder_of("a" * 64, str(model)),
        measuring.folder_of("b" * 64, str(model)),
        measuring.folder_of("a" * 64, str(other)),
        measuring.folder_of("a" * 64, str(model), "text=question"),
    }
    assert len(folders) == 4


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ 'a' * 5000000000 }}", "more text than fits in memory"),
        ("{{ messages[7]['content'] + 1 }}", "cannot be rendered by the model's chat template"),
        ("{% if %}", "cannot be rendered by the model's chat template"),
    ],
    ids=["memory", "raises", "syntax"],
)
def test_a_template_that_does_harm_ends_in_a_clear_error(
    home: Path, tmp_path: Path, data: Path, model: Path, template: str, cause: str
) -> None:
    problem = failed(data, bad_model(tmp_path / "bad", model, template)).problem
    assert problem is not None
    assert cause in problem["message"]
    assert (problem["file"], problem["line"]) == ("rows.jsonl", 1)
    assert problem["fix"]


def test_a_template_that_never_ends_is_ended(
    home: Path, tmp_path: Path, data: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 4)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    problem = failed(data, bad_model(tmp_path / "bad", model, endless)).problem
    assert problem is not None and "processor time" in problem["message"]


def test_a_model_without_a_tokenizer_is_named(home: Path, tmp_path: Path, data: Path) -> None:
    (tmp_path / "empty").mkdir()
    problem = failed(data, tmp_path / "empty").problem
    assert problem is not None and problem["field"] == "model"


def test_what_failed_is_tried_again_when_asked(home: Path, tmp_path: Path, data: Path, model: Path) -> None:
    mended = bad_model(tmp_path / "bad", model, "{{ nothing + 1 }}")
    sha = token_store.file_fingerprint(data)
    failed(data, mended)
    assert measuring.measure(data, sha, str(mended)).status == "failed"
    assert measuring.measure(data, sha, str(mended), retry=True).status == "running"
    with pytest.raises(DataError, match="chat template"):
        measuring.wait(lambda: measuring.state(sha, str(mended)))


def test_the_process_imports_no_torch(home: Path, data: Path, model: Path, tmp_path: Path) -> None:
    run = "sys.argv = ['t', *sys.argv[1:]]; runpy.run_module('training.tokenizing', run_name='__main__')"
    spy = f"import sys, runpy; {run}; print(sys.modules['torch'])"
    command = [sys.executable, "-c", spy, str(data), "--model", str(model), "--into", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def test_a_killed_process_leaves_nothing_that_harms(home: Path, tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "many.jsonl", 40_000)
    sha = token_store.file_fingerprint(data)
    folder = measuring.folder_of(sha, str(model))
    measuring.measure(data, sha, str(model))
    until(lambda: measuring.state(sha, str(model)).done > 0)
    os.kill(maker(folder), signal.SIGKILL)
    until(lambda: measuring.state(sha, str(model)).status == "failed")
    assert not folder.exists()
    data = write(tmp_path / "many.jsonl", 40_000)
    assert measuring.measure(data, sha, str(model), retry=True).status == "running"
    opened = token_store.open_store(measuring.wait(lambda: measuring.state(sha, str(model))))
    assert opened.rows == 40_000
    assert not token_store.making_folder(folder).exists()


def test_several_processes_that_want_the_same_make_it_once(tmp_path: Path, data: Path, model: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "training.tokenizing",
        str(data),
        "--model",
        str(model),
        "--into",
        str(tmp_path / "store"),
    ]
    started = [subprocess.Popen(command, cwd=Path(__file__).parents[1]) for _ in range(4)]
    inodes = set()
    for process in started:
        assert process.wait(60) == 0
        inodes.add((tmp_path / "store" / token_store.FACTS).stat().st_ino)
    assert len(inodes) == 1


def test_a_removed_set_takes_its_tokens_along_unless_they_are_read(home: Path, data: Path, model: Path) -> None:
    folder = measured(data, model)
    sha = token_store.file_fingerprint(data)
    reading = token_store.in_use(folder)
    token_cache.drop(sha)
    assert folder.exists()
    os.close(reading)
    token_cache.drop(sha)
    assert not folder.exists()
    assert not failure_file(folder).exists()


def test_deleting_a_data_set_removes_its_tokens(home: Path, data: Path, model: Path) -> None:
    added = datasets.add_file(path=data, name="rows.jsonl")
    folder = measured(datasets.path_of(added), model)
    with database.write() as session:
        datasets.delete(session=session, dataset_id=added.id)
    assert not folder.exists()


def test_the_least_used_go_first_when_they_take_too_much(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [measured(write(tmp_path / f"{n}.jsonl", 20 + n), model) for n in range(3)]
    for age, folder in zip((30, 10, 20), folders, strict=True):
        os.utime(folder, (time.time() - age, time.time() - age))
    monkeypatch.setenv(
        "LATHE_TOKEN_CACHE_BYTES", str(sum(file.stat().st_size for file in folders[1].iterdir()) + 10_000)
    )
    get_settings.cache_clear()
    token_cache.make_room()
    assert [folder.exists() for folder in folders] == [False, True, False]


def test_only_the_tokens_of_data_that_is_there_are_kept(home: Path, tmp_path: Path, model: Path) -> None:
    first, second = (write(tmp_path / f"{n}.jsonl", 20 + n) for n in range(2))
    gone, kept = measured(first, model), measured(second, model)
    left_behind = token_store.making_folder(kept.with_name("0123456789abcdef-0"))
    left_behind.mkdir()
    token_cache.keep_only({token_store.file_fingerprint(second)})
    assert (gone.exists(), kept.exists(), left_behind.exists()) == (False, True, False)


def test_the_report_counts_rows_from_one_and_answers_any_maximum_length(home: Path, data: Path, model: Path) -> None:
    folder = measured(data, model)
    lengths = token_store.open_store(folder).lengths
    at = {
        limit: measuring.report(folder, max_length=limit, micro_batch=4, accumulation=1, world=1, seed=1, epochs=1)
        for limit in (16, 512)
    }
    assert at[512]["tokens"] == {
        "median": int(sorted(lengths)[24]),
        "p95": int(sorted(lengths)[46]),
        "max": max(lengths),
        "total": sum(lengths),
    }
    assert (at[512]["truncated_rows"], at[512]["untrained_rows"]) == (0, 0)
    assert at[16]["truncated_rows"] == sum(length > 16 for length in lengths)
    longest = at[512]["longest_rows"][0]
    assert lengths[longest["row"] - 1] == longest["tokens"] == max(lengths)
    assert at[512]["worst_batches"][0]["longest"] == max(lengths)
    assert json.loads(json.dumps(at[512])) is not None


def test_a_set_that_cannot_train_at_a_maximum_length_says_so_and_still_has_numbers(
    home: Path, data: Path, model: Path
) -> None:
    found = measuring.report(
        measured(data, model), max_length=8, micro_batch=4, accumulation=1, world=1, seed=1, epochs=1
    )
    assert (found["train_rows"], found["worst_batches"]) == (0, [])
    assert "Raise max_length" in found["problem"]
    assert found["tokens"]["total"] > 0


def test_a_row_is_shown_as_tokens_with_what_trains_what_is_cut_and_what_is_special(
    home: Path, tmp_path: Path, model: Path
) -> None:
    path = tmp_path / "row.jsonl"
    path.write_text(json.dumps({"messages": [turn("user", "é?"), turn("assistant", "日b")]}))
    tokens = measuring.rendered_row(measured(path, model), 0, max_length=8)
    assert "".join(token.text for token in tokens) == "<|user|>é?<|end|><|assistant|>日b<|end|>"
    assert "".join(token.text for token in tokens if token.trained) == "日b<|end|>"
    assert "".join(token.text for token in tokens if token.cut) == "日b<|end|>"
    assert [token.text for token in tokens if token.special] == ["<|user|>", "<|end|>", "<|assistant|>", "<|end|>"]


def until(true, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def maker(folder: Path) -> int:
    """The process that makes a store."""
    import psutil

    (found,) = [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(folder) in (process.info["cmdline"] or [])
    ]
    return found

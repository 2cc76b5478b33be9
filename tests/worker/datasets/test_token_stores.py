"""Tokenizing in the background: once per data set, complete or absent, and safe for any chat template."""

import contextvars
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trained
from paths import ROOT
from patience import ended, eventually
from tiny import TEMPLATE
from transformers import AutoTokenizer

from training.errors import DataError
from training.files import sha256
from training.tokens import store as token_store
from training.tokens.make_store import failure_file, find_or_make, make_store
from worker.datasets import datasets, near_rows, token_report, token_stores
from worker.datasets.token_stores import TokenCount
from worker.machine import programs
from worker.machine.turns import Turns, act_for
from worker.settings import get_settings
from worker.store import database

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> Path:
    return trained.model("llama")


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
    sha = sha256(path)
    token_stores.measure(path, sha, str(model), **more)
    folder = token_stores.wait(lambda: token_stores.state(sha, str(model)))
    for thread in threading.enumerate():  # the process has ended too and released its lock
        if thread.name.startswith("tokenizing"):
            thread.join()
    return folder


def stored(path: Path, model: Path) -> Path:
    """The same store as that of `measured`, made in this process."""
    folder = token_stores.folder_of(sha256(path), str(model))
    folder.parent.mkdir(exist_ok=True)
    with token_store.locked(folder):
        make_store(path, folder, AutoTokenizer.from_pretrained(model), None, lambda done: None)
    return folder


def failed(path: Path, model: Path) -> TokenCount:
    with pytest.raises(DataError):
        measured(path, model)
    state = token_stores.state(sha256(path), str(model))
    assert state.status == "failed" and state.problem
    return state


def bad_model(folder: Path, model: Path, template: str) -> Path:
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_data_set_is_tokenized_once_for_its_page_and_its_runs(home: Path, data: Path, model: Path) -> None:
    sha = sha256(data)
    assert token_stores.state(sha, str(model)).status == "absent"
    assert token_stores.measure(data, sha, str(model), rows=50).status == "running"
    assert token_stores.measure(data, sha, str(model)).status in ("running", "done")
    folder = token_stores.wait(lambda: token_stores.state(sha, str(model)))
    created = folder.stat().st_ino
    assert token_stores.measure(data, sha, str(model)).store == folder
    assert folder.stat().st_ino == created
    opened = token_store.open_store(folder)
    assert (opened.rows, len(opened.lengths)) == (50, 50)
    tokenizer = AutoTokenizer.from_pretrained(model)
    of_run = find_or_make(data, get_settings().tokens_dir, tokenizer, str(model), None, None, lambda done, total: None)
    assert of_run.folder == folder


def test_template_data_and_mapping_each_determine_the_store(
    home: Path, tmp_path: Path, data: Path, model: Path
) -> None:
    other = bad_model(tmp_path / "other", model, TEMPLATE + " ")
    folders = {
        token_stores.folder_of("a" * 64, str(model)),
        token_stores.folder_of("b" * 64, str(model)),
        token_stores.folder_of("a" * 64, str(other)),
        token_stores.folder_of("a" * 64, str(model), "text=question"),
    }
    assert len(folders) == 4


def test_a_user_has_only_so_many_data_sets_tokenized_at_a_time(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_stores, "turns", Turns(2))
    first, second = (write(tmp_path / f"{rows}.jsonl", rows) for rows in (20, 30))

    def asked(path: Path, user: str) -> None:
        context = contextvars.copy_context()
        context.run(act_for, user)
        assert context.run(token_stores.measure, path, sha256(path), str(model)).status == "running"

    def status(path: Path) -> str:
        return token_stores.state(sha256(path), str(model)).status

    asked(first, "eve")
    asked(second, "eve")
    assert (status(first), status(second)) == ("running", "absent")
    third = write(tmp_path / "third.jsonl", 40)
    asked(third, "bob")
    assert status(third) != "absent"
    token_stores.wait(lambda: token_stores.state(sha256(first), str(model)))
    for thread in threading.enumerate():
        if thread.name.startswith("tokenizing"):
            thread.join()
    asked(second, "eve")
    token_stores.wait(lambda: token_stores.state(sha256(second), str(model)))


def test_a_user_has_only_so_many_data_sets_compared_at_a_time(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_stores, "turns", Turns(2))
    one, two, three = (
        token_store.open_store(stored(write(tmp_path / f"{rows}.jsonl", rows), model)) for rows in (20, 30, 40)
    )
    started, start = [], programs.start

    def starting(program: programs.Program, arguments: list[str], *more: object, **named: object) -> object:
        started.append(arguments)
        return start(program, arguments, *more, **named)

    monkeypatch.setattr(programs, "start", starting)

    def asked(*stores: token_store.TokenStore) -> TokenCount:
        context = contextvars.copy_context()
        context.run(act_for, "eve")
        return context.run(near_rows.measure, stores)

    assert [asked(one, two).status, asked(one, two).status, asked(two, three).status] == ["running"] * 3
    assert len(started) == 1
    eventually(lambda: asked(one, two).status == "done")
    eventually(lambda: asked(two, three).status == "done")
    assert len(started) == 2


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ 'a' * 5000000000 }}", "more text than fits in memory"),
        pytest.param(
            "{{ messages[7]['content'] + 1 }}",
            "cannot be rendered by the model's chat template",
            marks=pytest.mark.nightly,
        ),
        pytest.param("{% if %}", "cannot be rendered by the model's chat template", marks=pytest.mark.nightly),
    ],
    ids=["memory", "raises", "syntax"],
)
def test_a_harmful_template_fails_with_a_clear_error(
    home: Path, tmp_path: Path, data: Path, model: Path, template: str, cause: str
) -> None:
    problem = failed(data, bad_model(tmp_path / "bad", model, template)).problem
    assert problem is not None
    assert cause in problem["message"]
    assert (problem["file"], problem["line"]) == ("rows.jsonl", 1)
    assert problem["fix"]


def test_a_template_that_never_ends_is_killed(
    home: Path, tmp_path: Path, data: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MAKE_STORE", replace(programs.MAKE_STORE, seconds=4))
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    problem = failed(data, bad_model(tmp_path / "bad", model, endless)).problem
    assert problem is not None and "CPU time" in problem["message"]


def test_a_model_without_a_tokenizer_is_named_in_the_error(home: Path, tmp_path: Path, data: Path) -> None:
    (tmp_path / "empty").mkdir()
    problem = failed(data, tmp_path / "empty").problem
    assert problem is not None and problem["field"] == "model"


def test_a_failed_tokenization_can_be_retried(home: Path, tmp_path: Path, data: Path, model: Path) -> None:
    mended = bad_model(tmp_path / "bad", model, "{{ nothing + 1 }}")
    sha = sha256(data)
    failed(data, mended)
    assert token_stores.measure(data, sha, str(mended)).status == "failed"
    assert token_stores.measure(data, sha, str(mended), retry=True).status == "running"
    with pytest.raises(DataError, match="chat template"):
        token_stores.wait(lambda: token_stores.state(sha, str(mended)))


def test_the_tokenizing_process_does_not_import_torch(home: Path, data: Path, model: Path, tmp_path: Path) -> None:
    run = "sys.argv = ['t', *sys.argv[1:]]; runpy.run_module('training.tokens.make_store', run_name='__main__')"
    spy = f"import sys, runpy; {run}; print(sys.modules['torch'])"
    command = [sys.executable, "-c", spy, str(data), "--model", str(model), "--into", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def test_tokenizing_works_after_a_killed_process(home: Path, tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "many.jsonl", 40_000)
    sha = sha256(data)
    folder = token_stores.folder_of(sha, str(model))
    token_stores.measure(data, sha, str(model))
    eventually(lambda: token_stores.state(sha, str(model)).done > 0)
    os.kill(maker(folder), signal.SIGKILL)
    eventually(lambda: token_stores.state(sha, str(model)).status == "failed")
    assert not folder.exists()
    data = write(tmp_path / "many.jsonl", 40_000)
    assert token_stores.measure(data, sha, str(model), retry=True).status == "running"
    opened = token_store.open_store(token_stores.wait(lambda: token_stores.state(sha, str(model))))
    assert opened.rows == 40_000
    assert not token_store.making_folder(folder).exists()


def test_concurrent_processes_write_one_store(tmp_path: Path, data: Path, model: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "training.tokens.make_store",
        str(data),
        "--model",
        str(model),
        "--into",
        str(tmp_path / "store"),
    ]
    started = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    inodes = set()
    for process in started:
        assert ended(process) == 0
        inodes.add((tmp_path / "store" / token_store.FACTS).stat().st_ino)
    assert len(inodes) == 1


def test_removing_a_data_set_removes_its_tokens_unless_they_are_in_use(home: Path, data: Path, model: Path) -> None:
    folder = stored(data, model)
    sha = sha256(data)
    reading = token_store.in_use(folder)
    token_stores.drop(sha)
    assert folder.exists()
    os.close(reading)
    token_stores.drop(sha)
    assert not folder.exists()
    assert not failure_file(folder).exists()


def test_deleting_a_data_set_removes_its_tokens(home: Path, data: Path, model: Path) -> None:
    added = datasets.add_file(path=data, name="rows.jsonl")
    folder = stored(datasets.path_of(added), model)
    with database.write() as session:
        datasets.delete(session=session, dataset_id=added.id)
    assert not folder.exists()


def test_the_least_recently_used_stores_are_deleted_above_the_limit(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [stored(write(tmp_path / f"{n}.jsonl", 20 + n), model) for n in range(3)]
    for age, folder in zip((30, 10, 20), folders, strict=True):
        os.utime(folder, (time.time() - age, time.time() - age))
    monkeypatch.setenv(
        "LATHE_TOKEN_CACHE_BYTES", str(sum(file.stat().st_size for file in folders[1].iterdir()) + 10_000)
    )
    get_settings.cache_clear()
    token_stores.make_room()
    assert [folder.exists() for folder in folders] == [False, True, False]


def test_tokens_of_deleted_data_sets_are_removed(home: Path, tmp_path: Path, model: Path) -> None:
    first, second = (write(tmp_path / f"{n}.jsonl", 20 + n) for n in range(2))
    deleted, remaining = stored(first, model), stored(second, model)
    left_behind = token_store.making_folder(remaining.with_name("0123456789abcdef-0"))
    left_behind.mkdir()
    token_stores.keep_only({sha256(second)})
    assert (deleted.exists(), remaining.exists(), left_behind.exists()) == (False, True, False)


def test_the_report_counts_rows_from_one_for_any_maximum_length(home: Path, data: Path, model: Path) -> None:
    store = token_store.open_store(stored(data, model))
    lengths = store.lengths
    at = {
        limit: token_report.report(store, max_length=limit, micro_batch=4, accumulation=1, world=1, seed=1, epochs=1)
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


def test_the_report_has_statistics_even_if_no_row_has_loss_tokens(home: Path, data: Path, model: Path) -> None:
    report = token_report.report(
        token_store.open_store(stored(data, model)),
        max_length=8,
        micro_batch=4,
        accumulation=1,
        world=1,
        seed=1,
        epochs=1,
    )
    assert (report["train_rows"], report["worst_batches"]) == (0, [])
    assert "Raise max_length" in report["problem"]
    assert report["tokens"]["total"] > 0


def test_a_row_shows_loss_truncated_and_special_tokens(home: Path, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "row.jsonl"
    path.write_text(json.dumps({"messages": [turn("user", "é?"), turn("assistant", "日b")]}))
    tokens = token_report.rendered_row(token_store.open_store(stored(path, model)), 0, max_length=8)
    assert "".join(token.text for token in tokens) == "<|user|>é?<|end|><|assistant|>日b<|end|>"
    assert "".join(token.text for token in tokens if token.trained) == "日b<|end|>"
    assert "".join(token.text for token in tokens if token.cut) == "日b<|end|>"
    assert [token.text for token in tokens if token.special] == ["<|user|>", "<|end|>", "<|assistant|>", "<|end|>"]


def maker(folder: Path) -> int:
    """The process that makes a store."""
    import psutil

    (result,) = [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(folder) in (process.info["cmdline"] or [])
    ]
    return result

"""Data sets: checked, stored once, and refused without leftovers."""

import errno
import gzip
import json
import math
import os
import shutil
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlmodel import select

from training import limited
from training.data.inspection import Inspection
from training.errors import DataError
from worker.datasets import checking, datasets, incoming
from worker.datasets.datasets import DatasetInUse, DatasetNotFound
from worker.machine import programs
from worker.settings import get_settings
from worker.store import database as db
from worker.store import runs
from worker.store.tables import Dataset, Run, Status

ROWS = "".join(
    json.dumps({"prompt": f"question {number}", "completion": f"answer {number}"}) + "\n" for number in range(20)
)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS)
    return path


def stored_files():
    return sorted(path.name for path in get_settings().datasets_dir.iterdir())


def stored_rows():
    with db.read() as session:
        return list(datasets.listing(session=session))


def refused(path, name=None, **values):
    with pytest.raises(DataError) as caught:
        datasets.add_file(path=path, name=name or path.name, **values)
    assert (stored_files(), stored_rows()) == ([], [])
    return caught.value


def test_a_file_is_stored_under_a_generated_name_with_its_properties(database, rows):
    added = datasets.add_file(path=rows, name="My rows.jsonl")
    assert (added.name, added.format, added.row_format, added.rows) == (
        "My rows.jsonl",
        "jsonl",
        "prompt/completion",
        20,
    )
    assert (added.columns, added.bytes) == (["prompt", "completion"], len(ROWS))
    assert added.sample[0] == {"prompt": "question 0", "completion": "answer 0"}
    assert stored_files() == [f"{added.id}.jsonl"]
    assert datasets.path_of(added).read_text() == ROWS
    assert rows.exists()


def test_a_moved_file_is_removed_from_its_old_place(home, rows):
    datasets.add_file(path=rows, name="rows.jsonl", move=True)
    assert not rows.exists()


def test_a_refused_moved_file_is_removed_too(home, tmp_path):
    path = tmp_path / "upload"
    path.write_text("")
    refused(path, "rows.jsonl", move=True)
    assert not path.exists()


def test_identical_files_are_stored_once_under_the_first_name(database, rows, tmp_path):
    first = datasets.add_file(path=rows, name="first.jsonl")
    copy = shutil.copy(rows, tmp_path / "copy.jsonl")
    second = datasets.add(path=copy, name="second.jsonl")
    assert (second.dataset.id, second.dataset.name, second.new) == (first.id, "first.jsonl", False)
    assert len(stored_files()) == len(stored_rows()) == 1


def test_adding_the_same_file_twice_at_once_creates_one_data_set(database, rows):
    with ThreadPoolExecutor(3) as pool:
        added = list(pool.map(lambda name: datasets.add_file(path=rows, name=name), ("a.jsonl", "b.jsonl", "c.jsonl")))
    assert len({item.id for item in added}) == 1
    assert len(stored_files()) == len(stored_rows()) == 1


def test_adding_a_file_again_restores_a_lost_stored_file(home, rows):
    added = datasets.add_file(path=rows, name="rows.jsonl")
    datasets.path_of(added).unlink()
    datasets.add_file(path=rows, name="rows.jsonl")
    assert datasets.path_of(added).read_text() == ROWS
    assert len(stored_rows()) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../../etc/passwd.jsonl", "passwd.jsonl"),
        ("C:\\data\\x.jsonl", "x.jsonl"),
        ("a\0b\n.jsonl", "ab.jsonl"),
        ("x" * 300 + ".jsonl", "x" * 194 + ".jsonl"),
    ],
)
def test_the_uploaded_file_name_is_only_displayed(database, rows, name, expected):
    added = datasets.add_file(path=rows, name=name)
    assert added.name == expected
    assert stored_files() == [f"{added.id}.jsonl"]


def test_unusual_characters_and_numbers_in_the_sample_can_be_stored(database, rows, monkeypatch):
    sample = [{"text": "nul \0, half a \ud800 pair, \U0001f600", "score": math.nan}]
    inspection = Inspection("jsonl", "text", "x\0", 1, ["text", "n\0"], sample, {"text": 1}, trainable=True)
    monkeypatch.setattr(datasets, "check_file", lambda *_: inspection)
    added = datasets.add_file(path=rows, name="rows.jsonl")
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=added.id).sample == [
            {"text": "nul \0, half a \ufffd pair, \U0001f600", "score": None}
        ]


# Files that are refused


def test_an_invalid_row_is_reported_with_its_position_and_the_fix(database, tmp_path):
    path = tmp_path / "upload-123"
    path.write_text(ROWS + '{"prompt": "x"}\n')
    error = refused(path, "mine.jsonl")
    assert (error.file, error.line, error.field) == ("mine.jsonl", 21, "completion")
    assert error.message and error.fix


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.jsonl", b""),
        ("program.jsonl", b"\x7fELF" + bytes(100)),
        ("archive.json", b"PK\x03\x04" + bytes(100)),
        ("packed.jsonl", gzip.compress(ROWS.encode())),
        ("latin.csv", "prompt,completion\né,b\n".encode("latin-1")),
        ("fake.parquet", b"PAR1 and no more"),
        ("deep.jsonl", b'{"text": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    ],
)
def test_a_file_that_cannot_train_is_refused_and_removed(home, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(path)
    assert error.file == name
    assert error.message and error.fix


def test_a_missing_file_or_a_folder_is_named_in_the_error(home, tmp_path):
    assert refused(tmp_path / "none.jsonl").message == "cannot be read: No such file or directory."
    (tmp_path / "folder").mkdir()
    assert refused(tmp_path / "folder", "folder").message == "is a folder without data files."


def test_a_pipe_is_refused_without_waiting(home, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert refused(tmp_path / "pipe.jsonl").message == "is not a regular file."


def test_a_file_above_the_limit_is_refused_with_both_sizes(home, rows, monkeypatch):
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", "100")
    get_settings.cache_clear()
    error = refused(rows)
    assert error.message == f"has {len(ROWS) / 1024:.1f} KiB; the limit is 100 bytes."
    assert "LATHE_UPLOAD_LIMIT_BYTES" in error.fix


def test_a_full_disk_is_reported_before_copying(home, rows, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    error = refused(rows)
    assert "1000 bytes free" in error.message and "LATHE_DATA_DIR" in error.fix


def test_a_disk_that_fills_up_while_copying_leaves_no_file(home, rows, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert refused(rows).message == "cannot be copied: No space left on device."


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("loop", "takes more than 1 s to read."),
        ("sleep", "takes more than 1 s to read."),
        ("memory", "needs too much memory to read."),
        ("crash", "crashed its reader (SIGSEGV): it is damaged or nested too deeply."),
        ("flood", "has far too many columns."),
        ("fail", "cannot be checked (RuntimeError: a mistake of ours)."),
        ("write", "cannot be checked (PermissionError: a reader may not write files: "),
    ],
)
def test_a_file_that_crashes_its_reader_is_refused(home, tmp_path, monkeypatch, what, message):
    monkeypatch.setattr(checking, "READER", replace(programs.INSPECTION, module="tests.programs.hostile_reader"))
    if what in ("loop", "sleep"):
        monkeypatch.setattr(checking, "READER", replace(checking.READER, seconds=1))
    path = tmp_path / "hostile.jsonl"
    path.write_text(what)
    error = refused(path)
    assert error.file == "hostile.jsonl"
    assert error.message.startswith(message)


def test_the_reader_process_gets_no_secrets(home, rows, monkeypatch, tmp_path):
    monkeypatch.setenv("LATHE_HUB_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert not {"LATHE_HUB_TOKEN", "HF_TOKEN"} & limited.environment().keys()


def test_a_module_in_the_current_folder_does_not_replace_the_reader(home, rows, monkeypatch, tmp_path):
    (tmp_path / "training.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    assert datasets.add_file(path=rows, name="rows.jsonl").rows == 20


# Deleting and cleaning up


def run_on(dataset, status):
    with db.write() as session:
        config = {"model": "m", "data": dataset.id}
        run = Run(id="run1", name="x", config=config, dataset_id=dataset.id, status=status, created_at=0, queued_at=0)
        session.add(run)


def delete(dataset_id):
    with db.write() as session:
        datasets.delete(session=session, dataset_id=dataset_id)


def test_deleting_a_data_set_deletes_its_file(database, rows):
    delete(datasets.add_file(path=rows, name="rows.jsonl").id)
    assert (stored_files(), stored_rows()) == ([], [])


def test_a_data_set_of_a_queued_run_cannot_be_deleted(database, rows):
    added = datasets.add_file(path=rows, name="rows.jsonl")
    run_on(added, Status.QUEUED)
    with pytest.raises(DatasetInUse, match=r"rows\.jsonl.* is in use by run1"):
        delete(added.id)
    assert stored_files() == [f"{added.id}.jsonl"]


def test_ended_runs_remain_when_their_data_set_is_deleted(database, rows):
    added = datasets.add_file(path=rows, name="rows.jsonl")
    run_on(added, Status.FINISHED)
    delete(added.id)
    with db.read() as session:
        run = runs.get(session=session, run_id="run1")
    assert (run.dataset_id, run.config["data"]) == (None, added.id)


def test_a_missing_data_set_is_named_in_the_error(database):
    with pytest.raises(DatasetNotFound, match=r"'abc'.* does not exist"):
        delete("abc")


def test_leftovers_of_a_killed_process_are_removed_but_not_files_being_imported(home):
    settings = get_settings()
    old = [settings.datasets_dir / ".incoming-old", settings.uploads_dir / "old"]
    new = [
        settings.datasets_dir / ".incoming-new",
        settings.uploads_dir / "new",
        settings.datasets_dir / "0123456789abcdef.jsonl",
    ]
    for path in (*old, *new):
        path.touch()
    for path in (*old, new[2]):
        os.utime(path, (time.time() - 7200,) * 2)
    incoming.remove_leftovers()
    assert [path.exists() for path in (*old, *new)] == [False, False, True, True, True]


def test_data_sets_are_listed_the_newest_first(database, tmp_path):
    for text in ("a", "b"):
        (tmp_path / f"{text}.csv").write_text(f"text\n{text}\n")
        datasets.add_file(path=tmp_path / f"{text}.csv", name=f"{text}.csv")
    assert [item.name for item in stored_rows()] == ["b.csv", "a.csv"]
    with db.read() as session:
        assert len(session.exec(select(Dataset)).all()) == 2


def test_the_reader_process_uses_the_same_python(home, rows, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert datasets.add_file(path=rows, name="rows.jsonl").rows == 20

"""Data sets: checked, kept once, and nothing left behind of what is refused."""

import errno
import gzip
import json
import math
import os
import shutil
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlmodel import select

from training.failure import DataError
from training.inspection import Inspection
from worker import checking, datasets, incoming, runs
from worker import database as db
from worker.datasets import DatasetInUse, DatasetNotFound
from worker.models import Dataset, Run, Status
from worker.settings import get_settings

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


def test_a_file_is_kept_under_a_name_of_ours_with_what_was_found_in_it(database, rows):
    added = datasets.add_file(path=rows, name="My rows.jsonl")
    assert (added.name, added.format, added.shape, added.rows) == ("My rows.jsonl", "jsonl", "prompt/completion", 20)
    assert (added.columns, added.bytes) == (["prompt", "completion"], len(ROWS))
    assert added.sample[0] == {"prompt": "question 0", "completion": "answer 0"}
    assert stored_files() == [f"{added.id}.jsonl"]
    assert datasets.path_of(added).read_text() == ROWS
    assert rows.exists()


def test_a_file_that_is_moved_in_is_gone_from_where_it_was(home, rows):
    datasets.add_file(path=rows, name="rows.jsonl", move=True)
    assert not rows.exists()


def test_a_refused_file_that_was_moved_in_is_gone_too(home, tmp_path):
    path = tmp_path / "upload"
    path.write_text("")
    refused(path, "rows.jsonl", move=True)
    assert not path.exists()


def test_the_same_bytes_are_kept_once_under_their_first_name(database, rows, tmp_path):
    first = datasets.add_file(path=rows, name="first.jsonl")
    copy = shutil.copy(rows, tmp_path / "copy.jsonl")
    second = datasets.add(path=copy, name="second.jsonl")
    assert (second.dataset.id, second.dataset.name, second.new) == (first.id, "first.jsonl", False)
    assert len(stored_files()) == len(stored_rows()) == 1


def test_two_who_add_the_same_file_at_once_get_the_same_data_set(database, rows):
    with ThreadPoolExecutor(3) as pool:
        added = list(pool.map(lambda name: datasets.add_file(path=rows, name=name), ("a.jsonl", "b.jsonl", "c.jsonl")))
    assert len({one.id for one in added}) == 1
    assert len(stored_files()) == len(stored_rows()) == 1


def test_a_stored_file_that_was_lost_is_put_back_by_adding_it_again(home, rows):
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
def test_the_uploader_s_name_is_only_shown(database, rows, name, expected):
    added = datasets.add_file(path=rows, name=name)
    assert added.name == expected
    assert stored_files() == [f"{added.id}.jsonl"]


def test_odd_letters_and_numbers_in_the_sample_do_not_harm_the_database(database, rows, monkeypatch):
    sample = [{"text": "nul \0, half a \ud800 pair, \U0001f600", "score": math.nan}]
    found = Inspection("jsonl", "text", "x\0", 1, ["text", "n\0"], sample, {"text": 1}, trainable=True)
    monkeypatch.setattr(datasets, "check_file", lambda *_: found)
    added = datasets.add_file(path=rows, name="rows.jsonl")
    with db.read() as session:
        assert datasets.get(session=session, dataset_id=added.id).sample == [sample[0] | {"score": None}]


# Files that are refused


def test_a_bad_row_is_named_with_its_place_and_the_fix(database, tmp_path):
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
def test_what_cannot_train_is_refused_and_nothing_is_left(home, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(path)
    assert error.file == name
    assert error.message and error.fix


def test_a_file_that_is_not_there_or_is_a_folder_is_named(home, tmp_path):
    assert refused(tmp_path / "none.jsonl").message == "cannot be read: No such file or directory."
    assert refused(tmp_path, "folder").message == "is a folder."


def test_a_pipe_is_not_waited_for(home, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert refused(tmp_path / "pipe.jsonl").message == "is no ordinary file."


def test_a_file_above_the_limit_is_refused_with_both_sizes(home, rows, monkeypatch):
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", "100")
    get_settings.cache_clear()
    error = refused(rows)
    assert error.message == f"has {len(ROWS) / 1024:.1f} KiB, and at most 100 B are taken."
    assert "LATHE_UPLOAD_LIMIT_BYTES" in error.fix


def test_a_full_disk_is_said_before_anything_is_copied(home, rows, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    error = refused(rows)
    assert "1000 B free" in error.message and "LATHE_DATA_DIR" in error.fix


def test_a_disk_that_fills_up_while_copying_leaves_nothing(home, rows, monkeypatch):
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
        ("crash", "made its reader crash (SIGSEGV): it is damaged, or nested too deeply."),
        ("flood", "has far too many columns."),
        ("fail", "cannot be checked (RuntimeError: a mistake of ours)."),
        ("write", "cannot be checked (OSError: [Errno 27] File too large)."),
    ],
)
def test_a_file_that_harms_its_reader_harms_nothing_else(home, tmp_path, monkeypatch, what, message):
    monkeypatch.setattr(checking, "READER", "tests.hostile_reader")
    monkeypatch.setattr(checking, "SECONDS", 1)
    path = tmp_path / "hostile.jsonl"
    path.write_text(what)
    error = refused(path)
    assert (error.file, error.message) == ("hostile.jsonl", message)


def test_the_reader_sees_no_secrets_of_ours(home, rows, monkeypatch, tmp_path):
    monkeypatch.setenv("LATHE_HUB_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert not {"LATHE_HUB_TOKEN", "HF_TOKEN"} & checking.environment().keys()


def test_a_file_in_the_current_folder_cannot_stand_in_for_the_reader(home, rows, monkeypatch, tmp_path):
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


def test_a_deleted_data_set_is_gone_with_its_file(database, rows):
    delete(datasets.add_file(path=rows, name="rows.jsonl").id)
    assert (stored_files(), stored_rows()) == ([], [])


def test_a_data_set_that_a_run_waits_for_is_not_deleted(database, rows):
    added = datasets.add_file(path=rows, name="rows.jsonl")
    run_on(added, Status.QUEUED)
    with pytest.raises(DatasetInUse, match=r"rows\.jsonl is needed by run1"):
        delete(added.id)
    assert stored_files() == [f"{added.id}.jsonl"]


def test_runs_that_have_ended_stay_when_their_data_set_is_deleted(database, rows):
    added = datasets.add_file(path=rows, name="rows.jsonl")
    run_on(added, Status.FINISHED)
    delete(added.id)
    with db.read() as session:
        run = runs.get(session=session, run_id="run1")
    assert (run.dataset_id, run.config["data"]) == (None, added.id)


def test_a_data_set_that_does_not_exist_is_named(database):
    with pytest.raises(DatasetNotFound, match="No data set has the id 'abc'"):
        delete("abc")


def test_what_a_killed_process_left_is_removed_but_not_what_is_being_taken_in(home):
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
    assert [one.name for one in stored_rows()] == ["b.csv", "a.csv"]
    with db.read() as session:
        assert len(session.exec(select(Dataset)).all()) == 2


def test_the_reader_is_this_python_wherever_it_is(home, rows, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert datasets.add_file(path=rows, name="rows.jsonl").rows == 20

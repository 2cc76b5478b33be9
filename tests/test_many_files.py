"""Several files become one data set, whatever format each has."""

import gzip
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from training.failure import DataError
from training.rows import read_examples
from worker import checking, datasets
from worker.settings import get_settings


def rows(first, count):
    return [
        {"prompt": f"question {number}", "completion": f"answer {number}"} for number in range(first, first + count)
    ]


@pytest.fixture
def files(tmp_path):
    """Six rows in three files of three formats."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(0, 2)))
    parquet.write_table(pa.Table.from_pylist(rows(2, 2)), tmp_path / "b.parquet")
    text = "prompt,completion\n" + "".join(f"{row['prompt']},{row['completion']}\n" for row in rows(4, 2))
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return [tmp_path / name for name in ("a.jsonl", "b.parquet", "c.csv.gz")]


def add(files, names=None):
    return datasets.add_many(paths=files, names=names or [path.name for path in files])


def left_behind():
    settings = get_settings()
    return [path for folder in (settings.datasets_dir, settings.uploads_dir) for path in folder.iterdir()]


def test_their_rows_are_one_set_in_the_order_given(database, files):
    kept = add(files)
    assert (kept.name, kept.format, kept.shape, kept.rows) == (
        "a.jsonl + b.parquet + c.csv.gz",
        "jsonl",
        "prompt/completion",
        6,
    )
    assert [example.answer for example in read_examples(datasets.path_of(kept))] == [f"answer {n}" for n in range(6)]
    assert all(path.exists() for path in files)


def test_the_same_rows_are_kept_once(home, files):
    assert add(files).id == add(files, ["x.jsonl", "y.parquet", "z.csv.gz"]).id
    assert len(left_behind()) == 1


def test_files_of_several_formats_are_taken_with_a_warning_that_counts_them(home, files, tmp_path):
    (tmp_path / "more.txt").write_text("Once upon a time.\n")
    kept = add([files[0], tmp_path / "more.txt"])
    assert kept.counts == {"prompt/completion": 2, "text": 1}
    assert "several formats" in kept.warnings[0]["message"]


def test_what_json_has_no_form_for_is_kept_as_text(home, tmp_path, files):
    table = pa.table({"text": ["a"], "day": pa.array([0], pa.date32()), "raw": pa.array([b"x"], pa.binary())})
    parquet.write_table(table, tmp_path / "dates.parquet")
    kept = add([tmp_path / "dates.parquet", tmp_path / "dates.parquet"])
    assert kept.sample[0] == {"text": "a", "day": "1970-01-01", "raw": "b'x'"}


def test_the_file_at_fault_is_named_and_nothing_is_kept(home, files, tmp_path):
    (tmp_path / "bad.jsonl").write_text(json.dumps(rows(0, 1)[0]) + "\n{\n")
    with pytest.raises(DataError) as caught:
        add([*files, tmp_path / "bad.jsonl"])
    assert (caught.value.file, caught.value.line) == ("bad.jsonl", 2)
    assert left_behind() == []


def test_together_they_may_be_no_larger_than_one(home, files, monkeypatch):
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", str(sum(path.stat().st_size for path in files) - 1))
    get_settings.cache_clear()
    with pytest.raises(DataError, match="are taken"):
        add(files)
    assert left_behind() == []


def test_a_small_file_that_grows_beyond_the_limit_is_stopped_there(home, tmp_path, monkeypatch):
    row = json.dumps({"text": "x" * 1000}) + "\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(row.encode() * 3000))
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", "1000000")
    get_settings.cache_clear()
    with pytest.raises(DataError, match=r"at most 976\.6 KiB are taken"):
        add([tmp_path / "a.jsonl.gz"])
    assert left_behind() == []


def test_a_joining_process_that_fails_leaves_nothing(home, files, monkeypatch):
    monkeypatch.setattr(checking, "JOINER", "training.no_such_module")
    with pytest.raises(DataError, match="cannot be checked"):
        add(files)
    assert left_behind() == []

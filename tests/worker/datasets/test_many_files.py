"""Several files of any formats become one data set."""

import gzip
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import parquet

from training.data.rows import read_numbered
from training.errors import DataError
from worker.datasets import checking, datasets
from worker.settings import get_settings

pytestmark = pytest.mark.slow


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


def test_joined_files_keep_their_order_of_rows(database, files):
    added = add(files)
    assert (added.name, added.format, added.row_format, added.rows) == (
        "a.jsonl + b.parquet + c.csv.gz",
        "jsonl",
        "prompt/completion",
        6,
    )
    assert [example and example.answer for _, _, example in read_numbered(datasets.path_of(added))] == [
        f"answer {n}" for n in range(6)
    ]
    assert all(path.exists() for path in files)


def test_joining_the_same_files_again_returns_the_same_data_set(home, files):
    assert add(files).id == add(files, ["x.jsonl", "y.parquet", "z.csv.gz"]).id
    assert len(left_behind()) == 1


def test_joining_files_of_several_formats_warns_with_their_counts(home, files, tmp_path):
    (tmp_path / "more.txt").write_text("Once upon a time.\n")
    added = add([files[0], tmp_path / "more.txt"])
    assert added.counts == {"prompt/completion": 2, "text": 1}
    assert "several formats" in added.warnings[0]["message"]


def test_values_without_a_json_form_become_text(home, tmp_path, files):
    table = pa.table({"text": ["a"], "day": pa.array([0], pa.date32()), "raw": pa.array([b"x"], pa.binary())})
    parquet.write_table(table, tmp_path / "dates.parquet")
    added = add([tmp_path / "dates.parquet", tmp_path / "dates.parquet"])
    assert added.sample[0] == {"text": "a", "day": "1970-01-01", "raw": "b'x'"}


def test_the_invalid_file_is_named_and_nothing_is_stored(home, files, tmp_path):
    (tmp_path / "bad.jsonl").write_text(json.dumps(rows(0, 1)[0]) + "\n{\n")
    with pytest.raises(DataError) as caught:
        add([*files, tmp_path / "bad.jsonl"])
    assert (caught.value.file, caught.value.line) == ("bad.jsonl", 2)
    assert left_behind() == []


def test_the_size_limit_applies_to_all_files_together(home, files, monkeypatch):
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", str(sum(path.stat().st_size for path in files) - 1))
    get_settings.cache_clear()
    with pytest.raises(DataError, match="the limit is"):
        add(files)
    assert left_behind() == []


def test_a_compressed_file_that_exceeds_the_limit_is_stopped(home, tmp_path, monkeypatch):
    row = json.dumps({"text": "x" * 1000}) + "\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(row.encode() * 3000))
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", "1000000")
    get_settings.cache_clear()
    with pytest.raises(DataError, match="the limit is 977 KiB"):
        add([tmp_path / "a.jsonl.gz"])
    assert left_behind() == []


def test_a_failed_join_leaves_no_files(home, files, monkeypatch):
    monkeypatch.setattr(checking, "JOINER", replace(checking.JOINER, module="training.no_such_module"))
    with pytest.raises(DataError, match="cannot be checked"):
        add(files)
    assert left_behind() == []

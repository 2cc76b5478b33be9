"""Folders and zip archives of data files, and Arrow files, become one data set."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc
from subtest_table import table

from training.data.inspection import inspect
from training.errors import DataError
from worker.datasets import datasets
from worker.store.tables import Dataset

ROWS = [{"prompt": f"{n}?", "completion": str(n), "more": {"list": [n, None]}} for n in range(700)]


def arrow(path: Path, rows: list[dict[str, Any]], *, stream: bool = True) -> Path:
    """An Arrow file; as a stream of record batches, as `datasets` writes it, or in the file format."""
    values = pa.Table.from_pylist(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (ipc.new_stream if stream else ipc.new_file)(str(path), values.schema) as writer:
        writer.write_table(values, max_chunksize=300)
    return path


def saved_to_disk(folder: Path, shards: int = 2) -> Path:
    """A folder as `Dataset.save_to_disk` writes it."""
    names = [f"data-{number:05}-of-{shards:05}.arrow" for number in range(shards)]
    for number, name in enumerate(names):
        arrow(folder / name, ROWS[number::shards])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def stored(path: Path) -> Dataset:
    return datasets.add(path=path, name=path.name).dataset


@table("stream", [True, False])
def test_an_arrow_file_is_read_row_by_row(tmp_path: Path, stream: bool) -> None:
    found = inspect(arrow(tmp_path / "rows.arrow", ROWS, stream=stream))
    assert (found.file_format, found.format, found.rows, found.trainable) == ("arrow", "prompt/completion", 700, True)
    assert found.sample[0] == ROWS[0]


@table("end", [100, -100])
def test_a_damaged_arrow_file_is_refused(tmp_path: Path, end: int) -> None:
    path = arrow(tmp_path / "rows.arrow", ROWS)
    path.write_bytes(path.read_bytes()[:end])
    error = inspect(path).error()
    assert error and "damaged or truncated Arrow" in error.message


def test_a_folder_that_datasets_saved_becomes_a_data_set(home: Path, tmp_path: Path) -> None:
    dataset = stored(saved_to_disk(tmp_path / "saved"))
    assert (dataset.name, dataset.rows, dataset.row_format, dataset.format) == (
        "saved",
        700,
        "prompt/completion",
        "jsonl",
    )
    assert dataset.sample[0]["more"] == {"list": [0, None]}


def test_a_zip_of_files_becomes_a_data_set(home: Path, tmp_path: Path) -> None:
    line = '{"text": "a"}\n'
    both = {"in/a.jsonl": line * 2, "in/b.csv": "text\nb\n", "__MACOSX/in/a.jsonl": "x", "readme.md": "x"}
    assert stored(zipped(tmp_path / "both.zip", both)).rows == 3
    one = stored(zipped(tmp_path / "one.zip", {"b.csv": "text\nc\n"}))
    assert (one.rows, one.format) == (1, "csv")


def refusal(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        stored(path)
    assert caught.value.file == path.name and caught.value.fix
    return caught.value


def test_a_missing_shard_is_named(home: Path, tmp_path: Path) -> None:
    folder = saved_to_disk(tmp_path / "saved", shards=3)
    (folder / "data-00001-of-00003.arrow").unlink()
    assert "lacks the shard data-00001-of-00003.arrow" in refusal(folder).message
    (folder / "state.json").unlink()
    assert "lacks the shard data-00001-of-00003.arrow" in refusal(folder).message


def test_files_of_several_splits_are_not_joined(home: Path, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        saved_to_disk(tmp_path / "both" / split)
    assert "the splits train and validation" in refusal(tmp_path / "both").message
    assert stored(tmp_path / "both" / "train").rows == 700


def test_an_archive_without_data_or_with_too_much_is_refused(home: Path, tmp_path: Path) -> None:
    assert (
        "zip archive without data files" in refusal(zipped(tmp_path / "a.zip", {"word/document.xml": "<a/>"})).message
    )
    assert "expands to more than" in refusal(zipped(tmp_path / "b.zip", {"a.txt": "a" * (260 * 2**20)})).message
    (tmp_path / "c.zip").write_bytes(b"PK\x03\x04 and nothing more")
    assert "cannot be read" in refusal(tmp_path / "c.zip").message
    assert not [file for file in (home / "datasets").rglob("*") if file.is_file()]


def test_an_archive_writes_only_into_its_own_folder(home: Path, tmp_path: Path) -> None:
    assert stored(zipped(tmp_path / "up.zip", {"../../up.jsonl": '{"text": "a"}\n'})).rows == 1
    assert not (tmp_path.parent / "up.jsonl").exists()


def test_a_link_to_a_file_outside_the_folder_is_not_read(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "rows.jsonl").symlink_to(tmp_path / "secret.jsonl")
    assert "without data files" in refusal(tmp_path / "folder").message


def test_an_excel_workbook_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(DataError, match=r"Excel workbook.*CSV"):
        datasets.add(path=path, name=path.name)

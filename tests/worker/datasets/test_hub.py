"""Data sets of the hub are listed, downloaded and checked like any other file; the hub is a local server."""

import io
import json
import socket

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.stand_in_hub import serve
from training.errors import DataError
from worker.datasets import datasets, hub
from worker.datasets.hub import RemoteFile, pick
from worker.settings import get_settings

ROWS = [{"prompt": f"question {number}", "completion": f"answer {number}"} for number in range(4)]


def as_parquet(rows):
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def hub_of(home, monkeypatch):
    """Serves files as the data set owner/set at HF_ENDPOINT."""
    opened = []

    def start(files):
        server = serve(files)
        address, heard = server.__enter__()
        opened.append(server)
        monkeypatch.setenv("HF_ENDPOINT", address)
        return heard

    yield start
    for server in opened:
        server.__exit__(None, None, None)


def left():
    return [path for path in get_settings().uploads_dir.rglob("*") if path.is_file()]


def refused(*arguments, **values):
    with pytest.raises(DataError) as caught:
        hub.fetch(*arguments, **values)
    assert left() == []
    return caught.value


def test_a_split_is_downloaded_and_stored_like_an_upload(hub_of):
    hub_of(
        {
            "README.md": b"# x",
            "data/train-00000-of-00001.parquet": as_parquet(ROWS),
            "data/test-00000-of-00001.parquet": b"x",
        }
    )
    path = hub.fetch("owner/set", "train")
    dataset = datasets.add_file(path=path, name="owner-set-train.parquet", move=True)
    assert (dataset.format, dataset.row_format, dataset.rows) == ("parquet", "prompt/completion", 4)
    assert left() == []


def test_several_files_of_a_split_are_joined_in_order(hub_of):
    hub_of(
        {
            "data/train-00001-of-00002.parquet": as_parquet(ROWS[2:]),
            "data/train-00000-of-00002.parquet": as_parquet(ROWS[:2]),
        }
    )
    path = hub.fetch("owner/set", "train")
    assert path.suffix == ".jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS


def test_no_token_is_sent(hub_of, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LATHE_HUB_TOKEN", "hf_secret")
    get_settings.cache_clear()
    heard = hub_of({"train.jsonl": as_jsonl(ROWS)})
    hub.fetch("owner/set", "train")
    assert heard and not any("authorization" in headers for headers in heard)


def test_a_missing_split_is_named_with_the_existing_ones(hub_of):
    hub_of({"train.jsonl": as_jsonl(ROWS)})
    error = refused("owner/set", "test")
    assert error.message == "has no data file of the split 'test'." and "train.jsonl" in error.fix


def test_a_data_set_missing_on_the_hub_is_named_in_the_error(hub_of):
    hub_of({})
    assert refused("owner/other", "train").message == "is not a public data set on the hub."
    assert refused("not a name", "train").message == "is not a valid data set name."


def test_a_data_set_above_the_limit_is_refused_before_it_is_downloaded(hub_of, monkeypatch):
    heard = hub_of({"train.jsonl": as_jsonl(ROWS)})
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", "10")
    get_settings.cache_clear()
    assert "the limit is 10 bytes" in refused("owner/set", "train").message
    assert len(heard) == 1


def test_an_invalid_shard_is_named_in_the_error(hub_of):
    hub_of({"data/train-0.jsonl": as_jsonl(ROWS), "data/train-1.jsonl": b'{"prompt": "a"'})
    error = refused("owner/set", "train")
    assert (error.file, error.line) == ("train-1.jsonl", 1) and "truncated" in error.message


def test_an_unreachable_hub_is_reported_with_a_fix(home, monkeypatch):
    with socket.socket() as taken:  # bound but not listening: connections are refused at once
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        error = refused("owner/set", "train")
    assert "does not answer" in error.message and "upload" in error.fix


@pytest.mark.parametrize(
    ("paths", "split", "config", "chosen"),
    [
        (["train.jsonl", "test.jsonl"], "train", None, ["train.jsonl"]),
        (["data.json", "dataset_infos.json"], "train", None, ["data.json"]),
        (["train.csv", "data/train-0.parquet"], "train", None, ["data/train-0.parquet"]),
        (["en/train/0.parquet", "de/train/0.parquet"], "train", "de", ["de/train/0.parquet"]),
        (["main_train.jsonl", "socratic_train.jsonl"], "train", "socratic", ["socratic_train.jsonl"]),
        (["data.json", "test.json"], "train", None, []),
        (["pictures.zip"], "train", None, []),
    ],
)
def test_the_files_of_a_split_are_selected_by_name(paths, split, config, chosen):
    assert [file.path for file in pick([RemoteFile(path, 1) for path in paths], split, config)] == chosen


def test_a_data_set_with_several_configurations_requires_a_choice():
    files = [RemoteFile(f"{name}/train-0.parquet", 1) for name in ("main", "socratic")]
    with pytest.raises(DataError, match="main, socratic"):
        pick(files, "train", None)

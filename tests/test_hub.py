"""Data sets of the hub are listed, downloaded and checked like any other file; the hub here is a server of our own."""

import io
import json
import socket

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.stand_in_hub import serve
from training.failure import DataError
from worker import datasets, hub
from worker.hub import RemoteFile, pick
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
    """Serves files as the data set owner/set of the hub that HF_ENDPOINT names."""
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


def test_a_split_is_downloaded_and_kept_like_an_upload(hub_of):
    hub_of(
        {
            "README.md": b"# x",
            "data/train-00000-of-00001.parquet": as_parquet(ROWS),
            "data/test-00000-of-00001.parquet": b"x",
        }
    )
    path = hub.fetch("owner/set", "train")
    kept = datasets.add_file(path=path, name="owner-set-train.parquet", move=True)
    assert (kept.format, kept.shape, kept.rows) == ("parquet", "prompt/completion", 4)
    assert left() == []


def test_several_files_of_a_split_become_one_in_their_order(hub_of):
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


def test_a_split_that_is_not_there_is_named_with_what_is(hub_of):
    hub_of({"train.jsonl": as_jsonl(ROWS)})
    error = refused("owner/set", "test")
    assert error.message == "has no data file of the split 'test'." and "train.jsonl" in error.fix


def test_a_data_set_that_is_not_there_is_named(hub_of):
    hub_of({})
    assert refused("owner/other", "train").message == "is no public data set of the hub."
    assert refused("not a name", "train").message == "is no name of a data set."


def test_a_data_set_above_the_limit_is_refused_before_it_is_downloaded(hub_of, monkeypatch):
    heard = hub_of({"train.jsonl": as_jsonl(ROWS)})
    monkeypatch.setenv("LATHE_UPLOAD_LIMIT_BYTES", "10")
    get_settings.cache_clear()
    assert "at most 10 B are taken" in refused("owner/set", "train").message
    assert len(heard) == 1


def test_a_bad_shard_is_named(hub_of):
    hub_of({"data/train-0.jsonl": as_jsonl(ROWS), "data/train-1.jsonl": b'{"prompt": "a"'})
    error = refused("owner/set", "train")
    assert (error.file, error.line) == ("train-1.jsonl", 1) and "cut off" in error.message


def test_a_hub_that_does_not_answer_is_said_with_what_to_do(home, monkeypatch):
    with socket.socket() as taken:  # bound and not listening: refused at once
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
def test_the_files_of_a_split_are_picked_by_their_names(paths, split, config, chosen):
    assert [file.path for file in pick([RemoteFile(path, 1) for path in paths], split, config)] == chosen


def test_configurations_are_asked_for_where_there_are_several():
    files = [RemoteFile(f"{name}/train-0.parquet", 1) for name in ("main", "socratic")]
    with pytest.raises(DataError, match="main, socratic"):
        pick(files, "train", None)

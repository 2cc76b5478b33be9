"""Files of runs in an object store: a folder, and a server that speaks S3. Interrupted uploads, other machines, deletion."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest
from fsspec.implementations.local import LocalFileSystem
from paths import ROOT
from patience import ended

from training.errors import UserError
from training.files import sha256
from training.run_folder import checkpoints
from training.run_folder.paths import checkpoint_dir
from training.run_folder.stages import Saved
from worker.datasets import datasets
from worker.file_store import dataset_files, object_store, run_files
from worker.file_store.object_store import DamagedFile, ObjectStore
from worker.file_store.run_files import RunFiles
from worker.settings import get_settings
from worker.store import database

pytestmark = pytest.mark.slow

# Uploads a run, and is killed when three files of its checkpoints are stored, the third of which is not in the journal yet.
KILLED_PUSH = """
import os, signal, sys
from pathlib import Path
from worker.file_store.object_store import ObjectStore
from worker.file_store.run_files import RunFiles
upload, stored = ObjectStore.upload, []
def upload_and_die(self, file, key):
    upload(self, file, key)
    stored.extend([key] if "/checkpoints/" in key else [])
    if len(stored) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
ObjectStore.upload = upload_and_die
files = RunFiles(Path(sys.argv[1]))
files.fetch((0, 0), lambda: None)
files.finish(lambda: None)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server with an empty bucket."""
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto's server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


S3_NIGHTLY = pytest.mark.parametrize("store", ["file", pytest.param("s3", marks=pytest.mark.nightly)], indirect=True)


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The store of the installation."""
    url = f"file://{tmp_path / 'store'}"
    if request.param == "s3":
        import s3fs

        settings = {
            "ENDPOINT_URL": request.getfixturevalue("s3"),
            "ACCESS_KEY_ID": "key",
            "SECRET_ACCESS_KEY": "secret",
        }
        for name, value in (settings | {"DEFAULT_REGION": "us-east-1"}).items():
            monkeypatch.setenv(f"AWS_{name}", value)
        bucket = f"bucket-{time.monotonic_ns()}"
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
        url = f"s3://{bucket}/lathe"
    monkeypatch.setenv("LATHE_STORE_URL", url)
    get_settings.cache_clear()
    found = object_store.configured()
    assert found is not None
    return found


def saved(run_dir: Path, step: int, *, files: int = 2, size: int = 1000) -> Path:
    """A complete checkpoint."""
    checkpoint = checkpoint_dir(run_dir, step)
    (checkpoint / "shards").mkdir(parents=True)
    for number in range(files):
        (checkpoint / "shards" / f"{number}.pt").write_bytes(os.urandom(size))
    checkpoints.seal(checkpoint)
    return checkpoint


def uploaded(run_dir: Path) -> RunFiles:
    files = RunFiles(run_dir)
    files.fetch((0, 0), lambda: None)
    assert files.finish(lambda: None, seconds=0)
    return files


def fetched(run_dir: Path, offsets: tuple[int, int] = (0, 0)) -> None:
    """Downloads, and uploads nothing afterwards."""
    files = RunFiles(run_dir)
    try:
        files.fetch(offsets, lambda: None)
    finally:
        files._ended.set()


def test_a_run_continues_on_another_machine(store: ObjectStore, tmp_path: Path) -> None:
    here, there = tmp_path / "a" / "run1", tmp_path / "b" / "run1"
    checkpoint = saved(here, 4)
    (here / "events.jsonl").write_bytes(b"x" * 99 + b"\n")
    (here / "adapter").mkdir()
    (here / "adapter" / "weights").write_bytes(b"trained")
    uploaded(here)
    there.mkdir(parents=True)
    fetched(there, (120, 0))
    assert checkpoints.newest_checkpoint(there) == (checkpoint_dir(there, 4), [])
    assert (there / "adapter" / "weights").read_bytes() == b"trained"
    assert [path.name for path in (there / "adapter").iterdir()] == ["weights"]
    # The database has read more than was uploaded: new records follow after that place.
    assert (there / "events.jsonl").read_bytes() == b"x" * 99 + b"\n" * 21
    assert sha256(checkpoint / "shards" / "0.pt") == sha256(checkpoint_dir(there, 4) / "shards" / "0.pt")


def test_the_stages_after_a_saved_result_go_on_on_another_machine(store: ObjectStore, tmp_path: Path) -> None:
    here, there = tmp_path / "a" / "run1", tmp_path / "b" / "run1"
    (here / "adapter").mkdir(parents=True)
    (here / "adapter" / "adapter_model.safetensors").write_bytes(b"trained")
    (here / "events.jsonl").write_bytes(b"x\n")
    Saved("finished", {"steps": 4}, done=["answering"]).write(here)
    uploaded(here)
    there.mkdir(parents=True)
    fetched(there, (2, 0))
    saved_there = Saved.read(there)
    assert saved_there is not None
    assert (saved_there.summary, saved_there.done) == ({"steps": 4}, ["answering"])


def test_the_forms_of_an_earlier_result_are_nowhere_once_the_run_trains_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    here = tmp_path / "a" / "run1"
    for name in ("adapter", "merged", "parity"):
        (here / name).mkdir(parents=True)
        (here / name / "weights").write_bytes(b"first")
    for name in ("model-Q8_0.gguf", "checkpoint-4.zip", "events.jsonl"):
        (here / name).write_bytes(b"first")
    files = uploaded(here)
    for built in ("merged.zip", "model-Q8_0.gguf", "checkpoint-4.zip"):
        run_files.push_built(store, here, here / built)
    files.outdate(lambda: None)
    for name in ("merged.zip", "model-Q8_0.gguf", "checkpoint-4.zip"):
        assert not run_files.pull_built(store, here, name)
    assert {key.split("/")[2] for key in store.keys("runs/run1")} == {"adapter", "events.jsonl"}
    assert {path.name for path in here.iterdir()} == {".fetching", ".uploaded.json", "adapter", "events.jsonl"}


@S3_NIGHTLY
def test_a_result_of_an_earlier_attempt_here_is_replaced_before_the_run_goes_on(
    store: ObjectStore, tmp_path: Path
) -> None:
    here, there = tmp_path / "a" / "run1", tmp_path / "b" / "run1"
    for folder, weights in ((here, b"second"), (there, b"first")):
        (folder / "adapter").mkdir(parents=True)
        (folder / "adapter" / "weights").write_bytes(weights)
        (folder / "events.jsonl").write_bytes(weights)
    (there / "model.gguf").write_bytes(b"first")
    uploaded(here)
    fetched(there, (len(b"second"), 0))
    assert (there / "adapter" / "weights").read_bytes() == b"second"
    assert not (there / "model.gguf").exists()


@S3_NIGHTLY
def test_a_checkpoint_without_its_manifest_does_not_count(store: ObjectStore, tmp_path: Path) -> None:
    here, there = tmp_path / "a" / "run1", tmp_path / "b" / "run1"
    saved(here, 4)
    uploaded(here)
    store.delete("runs/run1/checkpoints/checkpoint-4/manifest.json")
    there.mkdir(parents=True)
    fetched(there)
    assert checkpoints.sealed(there) == []


@S3_NIGHTLY
def test_a_damaged_file_in_the_store_is_not_used(store: ObjectStore, tmp_path: Path) -> None:
    here, there = tmp_path / "a" / "run1", tmp_path / "b" / "run1"
    saved(here, 4)
    uploaded(here)
    (tmp_path / "other").write_bytes(bytes(1000))
    store.upload(tmp_path / "other", "runs/run1/checkpoints/checkpoint-4/shards/1.pt")
    there.mkdir(parents=True)
    with pytest.raises(DamagedFile, match=r"checkpoint-4/shards/1.pt is damaged"):
        fetched(there)
    assert checkpoints.sealed(there) == []


@S3_NIGHTLY
def test_an_upload_that_was_killed_continues_and_never_counts_before_its_end(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "run1"
    saved(here, 4, files=60)
    prefix = "runs/run1/checkpoints/checkpoint-4"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    pushing = subprocess.Popen([sys.executable, "-c", KILLED_PUSH, str(here)], env=environment)
    ended(pushing)
    assert pushing.returncode == -signal.SIGKILL
    assert len(store.keys(prefix)) == 3
    assert store.size(f"{prefix}/manifest.json") is None
    sent: list[str] = []
    upload = ObjectStore.upload
    monkeypatch.setattr(ObjectStore, "upload", lambda self, file, key: sent.append(key) or upload(self, file, key))
    uploaded(here)
    assert len(store.keys(prefix)) == 61
    assert len([key for key in sent if key.startswith(prefix)]) == 61 - 2  # two were in the journal


def test_deleted_checkpoints_and_runs_are_deleted_in_the_store(store: ObjectStore, tmp_path: Path) -> None:
    here = tmp_path / "run1"
    saved(here, 2)
    saved(here, 4)
    uploaded(here)
    checkpoints.prune(here, keep=1)
    uploaded(here)
    names = {key.split("/")[3] for key in store.keys("runs/run1/checkpoints")}
    assert names == {"checkpoint-4"}
    run_files.forget("run1", "checkpoint-4")
    assert store.keys("runs/run1/checkpoints") == []
    run_files.forget("run1")
    assert store.keys("runs/run1") == []


@S3_NIGHTLY
def test_a_changed_checkpoint_of_the_same_step_replaces_the_old_one(store: ObjectStore, tmp_path: Path) -> None:
    here, there = tmp_path / "a" / "run1", tmp_path / "b" / "run1"
    checkpoint = saved(here, 4)
    uploaded(here)
    checkpoints.discard(checkpoint)
    checkpoint = saved(here, 4)
    uploaded(here)
    there.mkdir(parents=True)
    fetched(there)
    manifest = json.loads((checkpoint_dir(there, 4) / "manifest.json").read_text())
    assert manifest == json.loads((checkpoint / "manifest.json").read_text())
    assert checkpoints.fault(checkpoint_dir(there, 4)) == ""


def test_a_data_set_is_downloaded_where_it_is_needed_and_checked(store: ObjectStore, tmp_path: Path) -> None:
    file = tmp_path / "0123.jsonl"
    file.write_text("row\n")
    digest = sha256(file)
    dataset_files.push(file, file)
    file.unlink()
    assert dataset_files.present(file, digest) and file.read_text() == "row\n"
    file.unlink()
    with pytest.raises(DamagedFile):
        dataset_files.present(file, "another hash")
    assert not file.exists()
    dataset_files.forget(file)
    assert not dataset_files.present(file, digest)


def test_two_that_need_a_data_set_at_once_download_it_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATHE_STORE_URL", f"file://{tmp_path / 'store'}")
    get_settings.cache_clear()
    file = tmp_path / "0123.jsonl"
    file.write_text("row\n" * 100)
    digest = sha256(file)
    dataset_files.push(file, file)
    file.unlink()
    get_file, begun = LocalFileSystem.get_file, Barrier(2)

    def in_two_parts(self: LocalFileSystem, source: str, target: str) -> None:
        Path(target).write_text("row\n")
        with contextlib.suppress(BrokenBarrierError):
            begun.wait(0.3)  # for the other, which must not begin
        get_file(self, source, target)

    monkeypatch.setattr(LocalFileSystem, "get_file", in_two_parts)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: dataset_files.present(file, digest), range(2))) == [True, True]
    assert sha256(file) == digest and begun.broken
    dataset_files.forget(file)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [file.name]


def test_an_import_that_the_store_does_not_take_keeps_nothing_and_can_be_repeated(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "store"
    blocked.write_text("a file where the store's folder should be")
    monkeypatch.setenv("LATHE_STORE_URL", f"file://{blocked}")
    get_settings.cache_clear()
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(UserError, match="does not take the file"):
        datasets.add(path=rows, name="rows.jsonl")
    with database.read() as session:
        assert datasets.listing(session=session) == []
    blocked.unlink()
    added = datasets.add(path=rows, name="rows.jsonl")
    assert added.new and (blocked / "datasets" / datasets.path_of(added.dataset).name).read_text() == rows.read_text()

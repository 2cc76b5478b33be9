"""The result of a run that ended on another machine, from the object store: downloaded when somebody asks for it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from sqlalchemy.pool import QueuePool

from app.documents.results.outputs import outputs
from training.config.run_config import RunConfig
from worker.file_store import object_store
from worker.file_store.object_store import ObjectStore
from worker.file_store.run_files import RunFiles
from worker.results import fetching, results
from worker.runs import requests, submit
from worker.serving import models
from worker.serving import requests as serving
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Run, Status

RECORDS = b"x" * 99 + b"\n"


@pytest.fixture
def store_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that is the installation's object store."""
    monkeypatch.setenv("LATHE_STORE_URL", f"file://{tmp_path / 'store'}")
    get_settings.cache_clear()
    yield tmp_path / "store"
    object_store._opened.cache_clear()


@pytest.fixture
def run(store_folder: Path, tmp_path: Path) -> Run:
    """A run that has finished on another machine, which uploaded its files."""
    with database.write() as session:
        created = runs.create(session=session, config=RunConfig(model="m", data="d"), dataset_id=None, name="there")
        created.status, created.event_offset = Status.FINISHED, len(RECORDS)
        session.add(created)
    there = tmp_path / "there" / created.id
    (there / "adapter").mkdir(parents=True)
    (there / "adapter" / "weights").write_bytes(b"trained")
    (there / "answers.jsonl").write_text("{}\n")
    (there / "events.jsonl").write_bytes(RECORDS)
    files = RunFiles(there)
    files.fetch((0, 0), lambda: None)
    assert files.finish(lambda: None, seconds=0)
    return created


def test_the_result_is_downloaded_and_packed_when_it_is_asked_for(run: Run) -> None:
    assert fetching.is_elsewhere(run)
    folder = results.find(run)
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [("weights", b"trained")]
    with ZipFile(folder.parent / "adapter.zip") as packed:
        assert packed.read("weights") == b"trained"
    assert (folder.parent / "answers.jsonl").read_text() == "{}\n"
    assert not fetching.is_elsewhere(run) and fetching.start(run) is None


def test_the_page_says_that_it_is_downloaded_and_then_offers_it(run: Run) -> None:
    first = outputs(run)[0]
    assert (first.address, first.note) == ("", "Being downloaded from the object store.")
    fetching.fetch(run)
    assert any(output.address.endswith("/adapter.zip") and output.bytes for output in outputs(run))


def test_a_result_of_an_earlier_attempt_is_replaced(run: Run) -> None:
    old = get_settings().runs_dir / run.id / "adapter"
    old.mkdir(parents=True)
    (old / "weights").write_bytes(b"older")
    (old / "leftover").write_bytes(b"older")
    (old.parent / "model.gguf").write_bytes(b"older")
    fetching.fetch(run)
    assert [(file.name, file.read_bytes()) for file in old.iterdir()] == [("weights", b"trained")]
    assert not (old.parent / "model.gguf").exists()


def test_a_store_that_lacks_the_files_is_named_and_tried_again(run: Run, tmp_path: Path) -> None:
    stored = tmp_path / "store" / "runs" / run.id / "adapter" / "weights"
    stored.rename(stored.with_name("away"))
    with pytest.raises(fetching.NotFetched, match="could not be downloaded from the object store"):
        results.find(run)
    stored.with_name("away").rename(stored)
    assert results.find(run).name == "adapter"


def test_without_a_store_nothing_is_downloaded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATHE_STORE_URL")
    get_settings.cache_clear()
    shutil.rmtree(tmp_path / "store")
    assert fetching.start(run) is None and not fetching.is_elsewhere(run)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of connections that are in use, at each download."""
    counts: list[int] = []
    download = ObjectStore.download

    def counted(self: ObjectStore, *given: Any) -> None:
        pool = database.engine().pool
        assert isinstance(pool, QueuePool)
        counts.append(pool.checkedout())
        download(self, *given)

    monkeypatch.setattr(ObjectStore, "download", counted)
    return counts


def test_resuming_holds_no_transaction_while_it_downloads_the_data_set(
    home: Path, rung: list[str], config: Callable[..., RunConfig], store_folder: Path, connections: list[int]
) -> None:
    queued = submit.submit(config())
    with database.write() as session:
        stored = session.get(Run, queued.id)
        assert stored
        stored.status = Status.STOPPED
    for file in get_settings().datasets_dir.glob("*.jsonl"):
        file.unlink()
    requests.resume(queued.id)
    assert connections == [0]
    assert list(get_settings().datasets_dir.glob("*.jsonl"))


def test_a_model_to_be_served_is_downloaded_without_a_transaction(run: Run, connections: list[int]) -> None:
    serving.ask_for_one(run.id, run.owner)
    assert connections and not any(connections)


def test_a_worker_does_not_wait_for_the_download_of_a_model(run: Run, connections: list[int]) -> None:
    assert "being downloaded" in models.downloading([run.id])
    fetching.fetch(run)
    assert models.downloading([run.id]) == "" and not any(connections)

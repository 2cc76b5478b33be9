"""A supervised run with an object store: its files are there when it ends, and gone when it is deleted."""

from pathlib import Path

import pytest
from supervised import queue_run, supervise

from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Status

pytestmark = pytest.mark.slow


def test_a_run_has_its_files_in_the_store_until_it_is_deleted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATHE_STORE_URL", f"file://{tmp_path / 'store'}")
    get_settings.cache_clear()
    queued = queue_run(steps=5)
    stored = tmp_path / "store" / "runs" / queued
    for folder in (get_settings().runs_dir / queued, stored):
        folder.mkdir(parents=True)
        (folder / "model.gguf").write_bytes(b"of an earlier result")
    with supervise(queued) as it:
        run = it.wait()
    assert run.status is Status.FINISHED
    assert not any((folder / "model.gguf").exists() for folder in (it.run_dir, stored))
    for name in ("config.json", "events.jsonl", "output.log"):
        assert (stored / name).read_bytes() == (it.run_dir / name).read_bytes()
    with database.write() as session:
        runs.delete(session=session, run_id=run.id)
    assert [path for path in stored.rglob("*") if path.is_file()] == []

"""The files of finished runs on a machine with an object store: deleted beyond the limit, and downloaded again when needed."""

import os
import time
from collections.abc import Iterator

import pytest
from held_runs import claim, finish, now_of, told_of
from run_files import checkpoint, folder_of, result, steps_of
from sqlmodel import update

from worker.disk import retention
from worker.file_store import object_store
from worker.file_store.run_files import RunFiles
from worker.machine.process_identity import hostname
from worker.results import fetching, results
from worker.settings import SettingsError, get_settings
from worker.store import database as db
from worker.store.tables import Run, Status

RECORDS = b"x" * 99 + b"\n"
LIMIT = 20_000


@pytest.fixture
def limited(database, tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("LATHE_STORE_URL", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("LATHE_STORE_CACHE_BYTES", str(LIMIT))
    get_settings.cache_clear()
    yield
    object_store._opened.cache_clear()


def uploaded(new_run, status=Status.FINISHED, *, days_ago):
    """A run that has ended, of more than half the limit, with its files in the store."""
    run = claim(new_run().id)
    checkpoint(run.id, 10, size=12_000)
    result(run.id)
    folder = folder_of(run.id)
    (folder / "events.jsonl").write_bytes(RECORDS)
    (folder / "adapter.zip").write_bytes(b"packed")
    (folder / "rows.sqlite").write_bytes(b"made on this machine later")
    files = RunFiles(folder)
    files.fetch((0, 0), lambda: None)
    (folder / "rows.sqlite").rename(folder / "rows")
    assert files.finish(lambda: None, seconds=0)
    (folder / "rows").rename(folder / "rows.sqlite")
    finish(run, status)
    then = time.time() - days_ago * 24 * 3600
    with db.write() as session:
        session.exec(update(Run).where(Run.id == run.id).values(finished_at=then, event_offset=len(RECORDS)))
    os.utime(folder, (then, then))
    return run


def names(run):
    return sorted(path.name for path in folder_of(run.id).iterdir() if not path.name.startswith("."))


def test_the_least_recently_used_run_is_deleted_here_and_downloaded_again(limited, new_run):
    old, newer = uploaded(new_run, days_ago=9), uploaded(new_run, days_ago=5)
    assert retention.apply().files >= 4
    assert names(old) == ["checkpoints", "rows.sqlite"] and steps_of(old.id) == []
    assert steps_of(newer.id) == [10] and "adapter" in names(newer)
    assert told_of(old)[-1][2].startswith(f"Deleted its files on {hostname()} (")
    run = now_of(old)
    assert fetching.is_elsewhere(run)
    assert (results.find(run) / "adapter_model.safetensors").stat().st_size == 500
    assert not fetching.is_elsewhere(run)


def test_use_of_a_result_makes_its_run_the_most_recent(limited, new_run):
    old, newer = uploaded(new_run, days_ago=9), uploaded(new_run, days_ago=5)
    results.find(now_of(old))
    retention.evict_copies()
    assert "adapter" in names(old) and "adapter" not in names(newer)


def test_what_was_used_within_a_day_or_can_be_resumed_stays(limited, new_run):
    kept = [
        uploaded(new_run, days_ago=0.5),
        uploaded(new_run, Status.STOPPED, days_ago=9),
        uploaded(new_run, Status.FAILED, days_ago=9),
    ]
    assert retention.evict_copies().bytes == 0
    assert all(steps_of(run.id) == [10] for run in kept)


@pytest.mark.parametrize("lost", ["events.jsonl", "adapter/manifest.json", "adapter/adapter_model.safetensors"])
def test_what_the_store_lacks_stays(limited, new_run, tmp_path, lost):
    old, _ = uploaded(new_run, days_ago=9), uploaded(new_run, days_ago=5)
    (tmp_path / "store" / "runs" / old.id / lost).unlink()
    retention.evict_copies()
    assert {"adapter", "adapter.zip"} <= set(names(old))


def test_without_a_limit_or_below_it_nothing_is_deleted(limited, new_run, monkeypatch):
    old, newer = uploaded(new_run, days_ago=9), uploaded(new_run, days_ago=5)
    for limit in (str(10 * LIMIT), None):
        monkeypatch.setenv("LATHE_STORE_CACHE_BYTES", limit) if limit else monkeypatch.delenv("LATHE_STORE_CACHE_BYTES")
        get_settings.cache_clear()
        assert retention.evict_copies().bytes == 0
    assert steps_of(old.id) == steps_of(newer.id) == [10]


def test_a_limit_without_a_store_is_refused(monkeypatch):
    monkeypatch.setenv("LATHE_STORE_CACHE_BYTES", "1000")
    get_settings.cache_clear()
    with pytest.raises(SettingsError, match="LATHE_STORE_URL"):
        get_settings()
    get_settings.cache_clear()

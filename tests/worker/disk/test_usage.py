"""Disk use by kind, measured in the background."""

import pytest
from held_runs import claim, finish
from run_files import checkpoint, folder_of, result

from training.run_folder.paths import MANIFEST_FILE
from worker.choices import Freeable
from worker.disk import background, usage
from worker.disk.usage import FileKind
from worker.machine.sizes import Size, size_of
from worker.settings import get_settings
from worker.store.tables import LOCAL, Status


@pytest.fixture(autouse=True)
def no_models(tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "model_caches", lambda: [tmp_path / "models"])
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights").write_bytes(b"x" * 70)


def measured():
    return usage.measure(lambda done, total: None)


def test_a_folder_has_the_size_of_its_files_and_links_are_not_followed(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_bytes(b"x" * 10)
    (tmp_path / "big").write_bytes(b"x" * 1000)
    (tmp_path / "inner" / "link").symlink_to(tmp_path / "big")
    assert size_of(tmp_path / "inner").files == 2
    assert size_of(tmp_path / "inner").bytes < 1000
    assert size_of(tmp_path / "absent") == Size()


def test_files_are_counted_by_kind(database, new_run):
    run = claim(new_run(name="mine").id)
    manifest = (checkpoint(run.id, 10, size=1000) / MANIFEST_FILE).stat().st_size
    result(run.id, size=500)
    (folder_of(run.id) / "output.log").write_bytes(b"x" * 30)
    (get_settings().datasets_dir / "abc.csv").write_bytes(b"x" * 20)
    found = measured()
    assert found.kinds[FileKind.CHECKPOINTS] == Size(1000 + manifest, 2)
    assert found.kinds[FileKind.RESULTS] == Size(500, 1)
    assert found.kinds[FileKind.RUN_FILES] == Size(30, 1)
    assert (found.kinds[FileKind.DATASETS], found.kinds[FileKind.MODELS]) == (Size(20, 1), Size(70, 1))
    (use,) = found.runs
    assert (use.name, use.status, use.size.bytes) == ("mine", "running", 1530 + manifest)


def test_a_folder_that_no_kind_names_is_counted(database):
    before = measured().kinds[FileKind.LOGS]
    (get_settings().data_dir / "of-a-later-version").mkdir()
    (get_settings().data_dir / "of-a-later-version" / "x").write_bytes(b"x" * 40)
    assert measured().kinds[FileKind.LOGS].bytes == before.bytes + 40


def test_the_ten_largest_runs_are_listed_largest_first(database, new_run):
    ids = [new_run().id for _ in range(12)]
    for number, run_id in enumerate(ids):
        result(run_id, size=100 + number)
    assert [use.id for use in measured().runs] == ids[:1:-1]


def test_what_can_be_freed_is_measured_by_owner(database, new_run):
    run = claim(new_run().id)
    checkpoint(run.id, 10)
    finish(run, Status.STOPPED)
    ((key, size),) = measured().freeable.items()
    assert key == (Freeable.RESUMABLE_CHECKPOINTS, LOCAL)
    assert size.files == 2


def test_what_the_retention_rules_would_delete_is_measured(database, new_run, monkeypatch):
    monkeypatch.setenv("LATHE_KEEP_CHECKPOINTS", "1")
    get_settings.cache_clear()
    run = claim(new_run().id)
    checkpoint(run.id, 10)
    checkpoint(run.id, 20)
    finish(run, Status.STOPPED)
    found = measured()
    assert (found.retention.files, found.retention_runs) == (2, 1)


def test_a_request_gets_progress_first_and_the_figures_later(home):
    disk = background.disk()
    first = disk.measured()
    assert first.usage is None
    assert first.progress is not None
    figures = disk.wait()
    assert figures.usage is not None
    assert figures.progress is None
    assert disk.measured() is figures  # fresh: measured once


def test_freeing_in_the_background_reports_its_outcome_and_new_figures(database, new_run):
    run = claim(new_run().id)
    checkpoint(run.id, 10)
    result(run.id)
    finish(run)
    disk = background.disk()
    progress = disk.free((Freeable.FINISHED_CHECKPOINTS,), lambda owner: True, "alice")
    figures = disk.wait()
    assert (progress.done, progress.total, progress.freed.files, progress.problems) == (1, 1, 2, [])
    assert progress.ended_at is not None
    assert figures.usage is not None
    assert figures.usage.kinds[FileKind.CHECKPOINTS] == Size()

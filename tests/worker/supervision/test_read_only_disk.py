"""A disk is mounted read-only, as the kernel does after errors: pages say so, and runs go on once it is writable."""

import errno
from pathlib import Path

import pytest
from small_disk import read_only, small_disk
from supervised import living, queue_run, supervise

from app.web.theme import header
from training.run_folder.full_disk import FullDisk
from worker.machine import overload
from worker.settings import get_settings
from worker.store.tables import Status
from worker.supervision.outcome import unsupervised
from worker.supervision.report_reader import AttemptProgress

pytestmark = pytest.mark.slow


def test_a_run_whose_disk_becomes_read_only_is_requeued_with_the_reason_and_resumes(home: Path) -> None:
    run_id = queue_run(steps=6, save_at=2, hold=5)
    folder = get_settings().runs_dir / run_id
    with small_disk(folder, 80):
        with supervise(run_id) as it:
            it.until(lambda run: run.step > 2)
            with read_only(folder):
                for process in living(run_id):
                    process.kill()
                run = it.wait()
        assert run.status is Status.QUEUED and run.attempt == 1
        reason = it.told()
        with supervise(run_id) as it:
            it.go()
            run = it.wait()
        told = it.told()
    assert (run.status, run.step) == (Status.FINISHED, 6)
    assert f"The disk at {folder} is read-only." in reason and "checkpoint of step 2" in reason
    assert "Resumed from step" in told


def test_an_error_of_the_supervisor_on_a_read_only_disk_names_the_disk_and_is_tried_again(home: Path) -> None:
    read_only = FullDisk("The disk at /data is read-only.", "Mount /data writable.")
    verdict = unsupervised(OSError(errno.EROFS, "Read-only file system"), AttemptProgress(), None, read_only)
    assert verdict.retry and verdict.reason == read_only.message and verdict.error
    assert verdict.error["fix"] == read_only.fix


def test_pages_name_a_read_only_data_folder_and_its_machine_starts_no_runs(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with small_disk(tmp_path / "home", 80) as folder:
        request.getfixturevalue("home")
        assert "read-only" not in header("/") + overload.in_words()
        with read_only(folder):
            assert f"The disk at {folder} is read-only." in header("/")
            assert f"The disk at {folder} is read-only" in overload.here()
            assert overload.here() in overload.in_words()
        assert overload.here() == ""

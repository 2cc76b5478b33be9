"""A disk fills while a run trains: the run ends at once, names the disk, and keeps its checkpoint."""

import errno
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from small_disk import MIB, fill, small_disk
from sqlalchemy.exc import OperationalError
from supervised import ENDLESS, living, queue_run, supervise

from app.errors import storage_problem
from training.reports.report import Report
from training.run_folder import full_disk
from training.run_folder.events import Failed, Metrics, decode
from training.run_folder.paths import RESERVE_FILE
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.database import says_full
from worker.store.tables import Status

pytestmark = pytest.mark.slow


@pytest.fixture
def data_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An installation whose database and runs share a disk of 80 MiB."""
    with small_disk(tmp_path / "home", 80) as folder:
        request.getfixturevalue("home")
        yield folder


def test_a_full_disk_of_run_and_database_is_reported_and_the_checkpoint_remains(
    data_disk: Path,
) -> None:
    with supervise(queue_run(**ENDLESS)) as it:
        it.until(lambda run: run.step > 2)
        fill(data_disk)
        run = it.wait()
        assert living(run.id) == []
    assert (run.status, run.attempt) == (Status.FAILED, 1) and run.error is not None
    assert f"The disk at {data_disk} is full: 0.0 MiB free." in run.error["message"]
    assert f"Free some space on {data_disk}" in run.error["fix"]
    assert (it.run_dir / "checkpoint-2").exists()


def test_a_full_disk_of_the_run_is_reported(home: Path) -> None:
    run_id = queue_run(**ENDLESS)
    with small_disk(get_settings().runs_dir / run_id, 80) as folder, supervise(run_id) as it:
        it.until(lambda run: run.step > 2)
        fill(folder)
        run = it.wait()
    assert run.status is Status.FAILED and run.error is not None
    assert f"The disk at {folder} is full" in run.error["message"]


def test_a_run_resumes_from_its_checkpoint_once_the_disk_has_space(data_disk: Path) -> None:
    run_id = queue_run(steps=6, save_at=2, hold=5)
    with supervise(run_id) as it:
        it.until(lambda run: run.step > 2)
        filler = fill(data_disk)
        it.wait()
    filler.unlink()
    with database.write() as session:
        runs.resume(session=session, run_id=run_id)
    with supervise(run_id) as it:
        it.go()
        run = it.wait()
    assert (run.status, run.step) == (Status.FINISHED, 6)
    assert "Resumed from step" in it.told()
    assert not (it.run_dir / RESERVE_FILE).exists()


def test_a_checkpoint_that_does_not_fit_is_removed_and_the_complete_one_remains(data_disk: Path) -> None:
    run_id = queue_run(**ENDLESS)
    folder = get_settings().runs_dir / run_id / "checkpoints"
    for name in ("checkpoint-1", "checkpoint-3"):
        (folder / name).mkdir(parents=True)
        (folder / name / "weights").write_bytes(bytes(MIB))
    (folder / "checkpoint-1" / "manifest.json").write_text("{}")
    with supervise(run_id) as it:
        it.until(lambda run: run.step > 2)
        fill(data_disk)
        assert it.wait().status is Status.FAILED
    assert [path.name for path in folder.iterdir()] == ["checkpoint-1"]


def test_a_run_does_not_start_on_a_full_disk(home: Path) -> None:
    run_id = queue_run()
    with small_disk(get_settings().runs_dir / run_id, 12) as folder, supervise(run_id) as it:
        (folder / "checkpoint-2").touch()
        run = it.wait()
        assert run.status is Status.FAILED and run.error is not None
        expected = f"The disk at {folder} is full: 12.0 MiB free. A run needs 64.0 MiB of free disk space to start."
        assert expected in run.error["message"]
        assert (folder / "checkpoint-2").exists()


def test_a_disk_that_can_hold_no_more_files_is_named_although_it_has_space(home: Path) -> None:
    run_id = queue_run()
    with small_disk(get_settings().runs_dir / run_id, 80, inodes=16) as folder, supervise(run_id) as it:
        run = it.wait()
        problem = storage_problem(OSError(errno.ENOSPC, "No space left on device", str(folder / "x")))
    assert run.status is Status.FAILED and run.error is not None
    assert f"The disk at {folder} holds as many files as it can: no inode is free" in run.error["message"]
    assert "df -i" in run.error["fix"]
    assert problem and "no inode for another file is free" in problem.message


def test_a_rank_deletes_the_reserve_file_to_report_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "run", 20) as folder:
        full_disk.keep_reserve(folder)
        report = Report(folder, rank=0)
        fill(folder)
        with pytest.raises(OSError, match="No space left") as full:
            for step in range(100):
                report.for_run(Metrics(step=step, values={"loss": 0.5}))
        report.failed(full.value)
        events = [event for line in (folder / "events.jsonl").read_bytes().splitlines() if (event := decode(line))]
        failed = events[-1]
        assert isinstance(failed, Failed) and failed.expected
        assert f"The disk at {folder} is full: 0.0 MiB free." in failed.message
        steps = [event.step for event in events[:-1] if isinstance(event, Metrics)]
        assert steps == list(range(len(steps)))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["errno", "quota", "a library's own error"],
)
def test_errors_of_a_full_disk_are_recognized_from_every_library(error: Exception, tmp_path: Path) -> None:
    outer = ValueError("the checkpoint was not saved")
    outer.__cause__ = error
    assert full_disk.is_full(error, tmp_path) and full_disk.is_full(outer, tmp_path)
    assert not full_disk.is_full(ValueError("something else"), tmp_path)


def test_a_full_database_is_distinguished_from_an_unreachable_one() -> None:
    refused = psycopg.errors.DiskFull("could not extend file")
    assert says_full(OperationalError("INSERT", {}, refused))
    assert not says_full(OperationalError("INSERT", {}, psycopg.OperationalError("connection refused")))

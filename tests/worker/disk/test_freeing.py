"""Freeing disk space: what is offered, what is deleted, and what a run that is queued again keeps."""

import os
import threading
import time

import pytest
from held_runs import claim, finish, resume, told_of
from run_files import checkpoint, result, steps_of

from training.tokens import store
from worker.choices import Freeable
from worker.disk import freeing
from worker.disk.freeing import Progress
from worker.settings import get_settings
from worker.store import database as db
from worker.store import uses
from worker.store.tables import LOCAL, Dataset, Status

EVERYTHING = tuple(Freeable)


def ended(new_run, status, **settings):
    """An ended run with two checkpoints, and a result if it finished."""
    run = claim(new_run(**settings).id)
    for step in (10, 20):
        checkpoint(run.id, step)
    if status is Status.FINISHED:
        result(run.id)
    finish(run, status)
    return run


def free(*kinds, may_change=lambda _: True):
    progress = Progress(kinds)
    freeing.free(progress, may_change, "alice")
    return progress


def offered():
    with db.read() as session:
        return {offer.kind for offer in freeing.offers(uses.run_states(session=session))}


def dataset(digit, new_run=None):
    """A data set with a token store; used by a queued run if `new_run` is given."""
    sha = digit * 64
    with db.write() as session:
        session.add(
            Dataset(id=sha[:16], sha256=sha, name="x", format="csv", row_format="text", rows=1, bytes=1, created_at=0)
        )
    folder = get_settings().tokens_dir / f"{sha[:16]}-model"
    folder.mkdir(parents=True)
    (folder / store.FACTS).write_text("{}")
    if new_run:
        new_run(data=sha[:16])
    return folder


def old(path):
    then = time.time() - freeing.OLD_SECONDS - 60
    os.utime(path, (then, then))


def test_checkpoints_of_a_finished_run_with_a_result_are_freed(database, new_run):
    run = ended(new_run, Status.FINISHED)
    progress = free(Freeable.FINISHED_CHECKPOINTS)
    assert (steps_of(run.id), progress.done, progress.freed.files) == ([], 1, 4)
    assert (get_settings().runs_dir / run.id / "adapter").is_dir()
    assert told_of(run)[-1][2].startswith("Deleted 2 checkpoints (")


def test_what_can_be_built_again_is_freed_and_the_result_stays(database, new_run):
    run = ended(new_run, Status.FINISHED)
    folder = get_settings().runs_dir / run.id
    (folder / "merged").mkdir()
    for name in ("merged/model.safetensors", "merged.zip", "model-Q8_0.gguf", "checkpoint-10.zip", "adapter.zip"):
        (folder / name).write_bytes(b"x" * 10)
    assert free(Freeable.BUILDS, may_change=lambda _: False).freed.files == 0
    assert free(Freeable.BUILDS).freed.bytes == 40
    assert sorted(path.name for path in folder.iterdir()) == ["adapter", "adapter.zip", "checkpoints"]
    assert told_of(run)[-1][2].startswith("Deleted model-Q8_0.gguf (10 bytes)")


def test_checkpoints_that_resume_needs_are_offered_apart(database, new_run):
    stopped, failed = ended(new_run, Status.STOPPED), ended(new_run, Status.FAILED)
    assert offered() == {Freeable.RESUMABLE_CHECKPOINTS}
    assert not Freeable.RESUMABLE_CHECKPOINTS.harmless
    free(Freeable.FINISHED_CHECKPOINTS)
    assert (steps_of(stopped.id), steps_of(failed.id)) == ([10, 20], [10, 20])
    free(Freeable.RESUMABLE_CHECKPOINTS)
    assert (steps_of(stopped.id), steps_of(failed.id)) == ([], [])
    assert "Resume starts at step 0." in told_of(stopped)[-1][2]


def test_a_finished_run_without_a_result_keeps_its_checkpoints(database, new_run):
    run = claim(new_run().id)
    checkpoint(run.id, 10)
    finish(run)
    free(*EVERYTHING)
    assert steps_of(run.id) == [10]


def test_files_of_running_and_queued_runs_are_never_freed(database, new_run):
    queued, running = ended(new_run, Status.STOPPED), claim(new_run().id)
    checkpoint(running.id, 10)
    result(running.id)
    resume(queued)
    assert offered() == set()
    free(*EVERYTHING)
    assert (steps_of(running.id), steps_of(queued.id)) == ([10], [10, 20])


def test_a_run_resumed_after_it_was_offered_keeps_its_checkpoints(database, new_run, monkeypatch):
    run = ended(new_run, Status.STOPPED)
    usual = freeing.offers

    def then_resumed(states):
        found = list(usual(states))
        resume(run)
        return found

    monkeypatch.setattr(freeing, "offers", then_resumed)
    progress = free(Freeable.RESUMABLE_CHECKPOINTS)
    assert (steps_of(run.id), progress.done, progress.freed.bytes) == ([10, 20], 1, 0)


def test_of_resume_and_freeing_at_the_same_time_the_first_wins(database, new_run):
    for _ in range(10):
        run = ended(new_run, Status.STOPPED)
        resuming = threading.Thread(target=resume, args=(run,))
        resuming.start()
        free(Freeable.RESUMABLE_CHECKPOINTS)
        resuming.join()
        told = [message for _, _, message in told_of(run) if message.startswith(("Resumed", "Deleted"))]
        assert "Deleted" not in "".join(told[told.index("Resumed.") :])
        assert steps_of(run.id) == ([10, 20] if told == ["Resumed."] else [])


def test_checkpoints_stay_if_the_database_fails(database, new_run, monkeypatch):
    run = ended(new_run, Status.STOPPED)

    def fail(**_):
        raise RuntimeError("the database is gone")

    monkeypatch.setattr("worker.store.history.note", fail)
    with pytest.raises(RuntimeError):
        free(Freeable.RESUMABLE_CHECKPOINTS)
    assert steps_of(run.id) == [10, 20]


def test_what_a_killed_process_left_is_deleted_with_the_next(database, new_run):
    run = ended(new_run, Status.FINISHED)
    left = get_settings().runs_dir / run.id / ".freed-0a1b2c3d"
    (left / "checkpoint-5").mkdir(parents=True)
    free(Freeable.FINISHED_CHECKPOINTS)
    assert (left.exists(), steps_of(run.id)) == (False, [])


def test_only_runs_that_the_caller_may_change_are_freed(database, new_run):
    run = ended(new_run, Status.FINISHED)
    free(*EVERYTHING, may_change=lambda owner: owner == "bob")
    assert steps_of(run.id) == [10, 20]
    free(*EVERYTHING, may_change=lambda owner: owner == LOCAL)
    assert steps_of(run.id) == []


def test_tokens_that_no_waiting_or_running_run_uses_are_freed(database, new_run):
    used, unused = dataset("a", new_run), dataset("b")
    free(Freeable.TOKENS)
    assert (used.exists(), unused.exists()) == (True, False)


def test_tokens_that_a_process_reads_stay(database):
    folder = dataset("a")
    held = store.in_use(folder)
    assert free(Freeable.TOKENS).freed.bytes == 0
    os.close(held)
    assert folder.exists()


def test_uploads_older_than_a_day_are_freed(home):
    folder = get_settings().uploads_dir / "host-1" / "abc"
    folder.mkdir(parents=True)
    for name in ("old.csv", "new.csv"):
        (folder / name).write_text("a,b")
    old(folder / "old.csv")
    free(Freeable.UPLOADS)
    assert [path.name for path in folder.iterdir()] == ["new.csv"]


def test_old_folders_of_unknown_runs_are_freed_and_nothing_else(database, new_run):
    known = ended(new_run, Status.STOPPED)
    folders = get_settings().runs_dir
    for name in ("0123456789ab", "0123456789ac", "my-own-files"):
        (folders / name).mkdir()
        (folders / name / "output.log").write_text("x")
    for name in ("0123456789ab", "my-own-files", known.id):
        old(folders / name)
    assert not Freeable.UNKNOWN_RUNS.harmless
    free(Freeable.UNKNOWN_RUNS)
    assert sorted(path.name for path in folders.iterdir()) == sorted(["0123456789ac", "my-own-files", known.id])

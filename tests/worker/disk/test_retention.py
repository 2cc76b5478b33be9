"""Retention rules: what they delete, and what Resume needs stays."""

import os

import pytest
from held_runs import claim, finish, resume, told_of
from run_files import checkpoint, result, steps_of
from sqlmodel import update

from worker.disk import retention
from worker.settings import get_settings
from worker.store import database as db
from worker.store.tables import Run, Status

DAY = 24 * 3600


@pytest.fixture
def rules(database, monkeypatch):
    """Sets the rules of the installation."""

    def use(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"LATHE_{name}", str(value))
        get_settings.cache_clear()

    return use


def ended(new_run, status=Status.FINISHED, days_ago=0, **settings):
    run = claim(new_run(**settings).id)
    for step in (10, 20, 30):
        checkpoint(run.id, step)
    if status is Status.FINISHED:
        result(run.id)
    finish(run, status)
    with db.write() as session:
        session.exec(update(Run).where(Run.id == run.id).values(finished_at=db.clock() - days_ago * DAY))
    return run


def test_without_rules_nothing_is_deleted(rules, new_run):
    run = ended(new_run, days_ago=1000)
    assert retention.apply_if_due() is None
    assert retention.apply().bytes == 0
    assert steps_of(run.id) == [10, 20, 30]


def test_the_newest_checkpoints_of_ended_runs_are_kept(rules, new_run):
    rules(KEEP_CHECKPOINTS=2)
    finished, stopped, running = ended(new_run), ended(new_run, Status.STOPPED), claim(new_run().id)
    checkpoint(running.id, 1)
    checkpoint(running.id, 2)
    checkpoint(running.id, 3)
    retention.apply()
    assert (steps_of(finished.id), steps_of(stopped.id), steps_of(running.id)) == ([20, 30], [20, 30], [1, 2, 3])
    message = told_of(stopped)[-1][2]
    assert message.startswith("Deleted 1 checkpoint (")
    assert "LATHE_KEEP_CHECKPOINTS=2" in message


def test_a_stopped_run_that_keeps_its_best_checkpoint_keeps_all(rules, new_run):
    rules(KEEP_CHECKPOINTS=1)
    run = ended(new_run, Status.STOPPED, load_best_at_end=True)
    retention.apply()
    assert steps_of(run.id) == [10, 20, 30]


def test_old_checkpoints_of_finished_runs_are_deleted(rules, new_run):
    rules(CHECKPOINT_DAYS=7)
    old, new, failed = ended(new_run, days_ago=8), ended(new_run, days_ago=6), ended(new_run, Status.FAILED, 100)
    retention.apply()
    assert (steps_of(old.id), steps_of(new.id), steps_of(failed.id)) == ([], [10, 20, 30], [10, 20, 30])


def test_old_runs_are_archived_unless_pinned(rules, new_run):
    rules(ARCHIVE_DAYS=7)
    old, pinned, recent, queued = ended(new_run, days_ago=8), ended(new_run, days_ago=8), ended(new_run), new_run()
    with db.write() as session:
        session.exec(update(Run).where(Run.id == pinned.id).values(pinned=True))
    retention.apply()
    with db.read() as session:
        archived = {run.id for run in (old, pinned, recent, queued) if session.get(Run, run.id).archived_at}
    assert archived == {old.id}
    assert steps_of(old.id) == [10, 20, 30]


def test_a_run_resumed_in_between_keeps_its_checkpoints(rules, new_run, monkeypatch):
    rules(KEEP_CHECKPOINTS=1)
    run = ended(new_run, Status.FAILED)
    usual = retention.due

    def then_resumed(*arguments):
        found = usual(*arguments)
        resume(run)
        return found

    monkeypatch.setattr(retention, "due", then_resumed)
    retention.apply()
    assert steps_of(run.id) == [10, 20, 30]


def test_the_rules_are_applied_once_an_hour_by_one_worker(rules, new_run):
    rules(KEEP_CHECKPOINTS=1)
    first = ended(new_run)
    retention.apply_if_due().join()
    assert steps_of(first.id) == [30]
    second = ended(new_run)
    assert retention.apply_if_due() is None
    os.utime(get_settings().data_dir / "retention.lock", (0, 0))
    retention.apply_if_due().join()
    assert steps_of(second.id) == [30]


def test_a_wrong_rule_is_reported_with_its_variable(rules):
    rules(KEEP_CHECKPOINTS=0)
    with pytest.raises(Exception, match="LATHE_KEEP_CHECKPOINTS"):
        get_settings()
    rules(KEEP_CHECKPOINTS="")

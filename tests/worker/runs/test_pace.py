"""When waiting runs start."""

import pytest
from held_runs import claim, finish, resume

from worker.runs.pace import WaitingJob, expected, seconds_per_step, starts
from worker.store import database as db
from worker.store.tables import Run, Status

WEEK = 7 * 86400.0


@pytest.mark.parametrize(
    ("running", "queued", "devices", "times"),
    [
        ([], [WaitingJob(1, 60), WaitingJob(1, 60)], 2, [0, 0]),
        ([WaitingJob(1, 100)], [WaitingJob(1, 50), WaitingJob(1, 10)], 1, [100, 150]),
        ([WaitingJob(1, 100), WaitingJob(1, 30)], [WaitingJob(2, 50), WaitingJob(1, 10)], 2, [100, 150]),
        ([WaitingJob(1, None)], [WaitingJob(1, 50)], 1, [None]),
        ([WaitingJob(1, 20)], [WaitingJob(1, None), WaitingJob(1, 10)], 1, [20, None]),
        ([WaitingJob(1, 20)], [WaitingJob(8, 10), WaitingJob(1, 10)], 2, [None, 0]),
        ([WaitingJob(4, 40)], [WaitingJob(2, 10), WaitingJob(2, 10), WaitingJob(2, 10)], 4, [40, 40, 50]),
        ([], [], 0, []),
    ],
)
def test_runs_start_in_their_order_as_devices_become_free(running, queued, devices, times):
    assert starts(running, queued, devices) == times


def test_the_speed_of_the_run_ahead_gives_the_start_of_the_next(database, new_run):
    ahead, next_run = claim(new_run(name="ahead").id, devices=["node1/cpu"]), new_run(name="next")
    with db.write() as session:
        stored = session.get(Run, ahead.id)
        stored.step, stored.total_steps, stored.seconds_per_step = 30, 100, 2.0
    with db.read() as session:
        assert expected(session=session, devices=1) == {next_run.id: 140.0}


def test_a_run_that_never_trained_takes_as_long_as_finished_ones_with_its_model_and_data(database, new_run):
    finished = claim(new_run().id)
    finish(finished)
    with db.write() as session:
        session.get(Run, finished.id).worked_seconds = 600.0
    first, second, other = new_run(), new_run(), new_run(data="other.jsonl")
    last = new_run()
    with db.read() as session:
        found = expected(session=session, devices=1)
    assert found == {first.id: 0.0, second.id: 600.0, other.id: 1200.0, last.id: None}


def test_days_in_which_a_run_was_stopped_are_no_part_of_what_it_takes(database, new_run):
    done, begun = claim(new_run().id), claim(new_run().id, devices=["node1/cuda:1"])
    for run, seconds in ((done, 1200.0), (begun, 300.0)):
        finish(run, Status.STOPPED)
        with db.write() as session:
            stored = session.get(Run, run.id)
            stored.started_at -= WEEK
            stored.worked_seconds = seconds
        resume(run)
    finish(claim(done.id))
    first = new_run()
    with db.read() as session:
        found = expected(session=session, devices=1)
    assert found == {begun.id: 0.0, first.id: pytest.approx(900.0, abs=5)}


def test_an_old_run_that_is_refused_today_counts_for_no_other(database, new_run):
    known, old = new_run(), new_run()
    with db.write() as session:
        for run_id, seconds in ((known.id, 3.0), (old.id, 1000.0)):
            session.get(Run, run_id).seconds_per_step = seconds
        stored = session.get(Run, old.id)
        stored.config = stored.config | {"gone_setting": 1}
    with db.read() as session:
        assert seconds_per_step(session, known.asked, 100) == pytest.approx(3.0)

"""When waiting runs start."""

import pytest
from held_runs import claim, finish, resume

from worker.runs.pace import Job, expected, starts
from worker.store import database as db
from worker.store.tables import Attempt, Run, Status

WEEK = 7 * 86400.0


@pytest.mark.parametrize(
    ("running", "queued", "devices", "times"),
    [
        ([], [Job(1, 60), Job(1, 60)], 2, [0, 0]),
        ([Job(1, 100)], [Job(1, 50), Job(1, 10)], 1, [100, 150]),
        ([Job(1, 100), Job(1, 30)], [Job(2, 50), Job(1, 10)], 2, [100, 150]),
        ([Job(1, None)], [Job(1, 50)], 1, [None]),
        ([Job(1, 20)], [Job(1, None), Job(1, 10)], 1, [20, None]),
        ([Job(1, 20)], [Job(8, 10), Job(1, 10)], 2, [None, 0]),
        ([Job(4, 40)], [Job(2, 10), Job(2, 10), Job(2, 10)], 4, [40, 40, 50]),
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
        attempt = session.get(Attempt, (finished.id, 1))
        attempt.started_at, attempt.ended_at = 1000.0, 1600.0
    first, second, other = new_run(), new_run(), new_run(data="other.jsonl")
    last = new_run()
    with db.read() as session:
        found = expected(session=session, devices=1)
    assert found == {first.id: 0.0, second.id: 600.0, other.id: 1200.0, last.id: None}


def test_days_in_which_a_run_was_stopped_are_no_part_of_what_it_takes(database, new_run):
    done = claim(new_run().id)
    finish(done, Status.STOPPED)
    resume(done)
    finish(claim(done.id))
    begun = claim(new_run().id)
    finish(begun, Status.STOPPED)
    resume(begun)
    first = new_run()
    with db.write() as session:
        for number, start in ((1, 1000.0), (2, 1000.0 + WEEK)):
            attempt = session.get(Attempt, (done.id, number))
            attempt.started_at, attempt.ended_at = start, start + 600
        session.get(Run, done.id).started_at = 1000.0
        session.get(Run, done.id).finished_at = 1600.0 + WEEK
        attempt = session.get(Attempt, (begun.id, 1))
        attempt.started_at, attempt.ended_at = 2000.0, 2300.0
        session.get(Run, begun.id).started_at = 2000.0
        session.get(Run, begun.id).position = 0
    with db.read() as session:
        assert expected(session=session, devices=1) == {begun.id: 0.0, first.id: 900.0}

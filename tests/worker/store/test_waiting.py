"""The order of the queue."""

import random

import pytest
from held_runs import claim, finish, now_of, requeue, resume

from worker.store import database as db
from worker.store import runs, waiting
from worker.store.tables import Run, Status
from worker.store.waiting import HIGH, LOW, NotWaiting


def order():
    with db.read() as session:
        return [run.name for run in waiting.waiting(session=session)]


def startable():
    with db.read() as session:
        return [run.name for run in waiting.startable(session=session)]


def move(run, before=None):
    with db.write() as session:
        return [one.name for one in waiting.move(session=session, run_id=run.id, before=before and before.id)]


@pytest.fixture
def four(database, new_run):
    """Four queued runs, a second apart."""
    queued = [new_run(name=name) for name in "abcd"]
    with db.write() as session:
        for number, run in enumerate(queued):
            session.get(Run, run.id).position = 1000.0 + number
    return queued


def test_a_run_is_moved_before_another_or_to_the_end(four):
    a, b, c, d = four
    assert move(d, before=b) == ["b", "c"]
    assert order() == ["a", "d", "b", "c"]
    assert move(a) == []
    assert order() == ["d", "b", "c", "a"]
    assert move(c, before=d) == ["d", "b"]
    assert order() == ["c", "d", "b", "a"]
    assert move(c, before=c) == []
    assert order() == ["c", "d", "b", "a"]


def test_any_sequence_of_moves_gives_the_order_that_a_list_would_have(four):
    generator, expected = random.Random(3), list(four)
    for _ in range(60):
        run = generator.choice(expected)
        before = generator.choice([one for one in expected if one is not run] + [None])
        move(run, before)
        expected.remove(run)
        expected.insert(expected.index(before) if before else len(expected), run)
        assert order() == [one.name for one in expected]


def test_a_higher_priority_starts_first_and_a_move_takes_the_priority_of_the_place(four):
    a, _, c, d = four
    with db.write() as session:
        waiting.set_priority(session=session, run_id=c.id, priority=HIGH)
        waiting.set_priority(session=session, run_id=a.id, priority=LOW)
    assert order() == ["c", "b", "d", "a"]
    move(d, before=c)
    assert order() == ["d", "c", "b", "a"]
    assert now_of(d).priority == HIGH
    move(d)
    assert (order(), now_of(d).priority) == (["c", "b", "a", "d"], LOW)


def test_a_held_run_keeps_its_place_and_cannot_be_claimed_until_it_is_released(four):
    a = four[0]
    with db.write() as session:
        waiting.hold(session=session, run_id=a.id, held=True)
    assert (order(), startable()) == (["a", "b", "c", "d"], ["b", "c", "d"])
    assert claim(a.id) is None
    with db.write() as session:
        waiting.hold(session=session, run_id=a.id, held=False)
    assert startable() == ["a", "b", "c", "d"]
    assert claim(a.id) is not None


def test_a_paused_queue_starts_nothing_and_names_who_paused_it(four):
    with db.write() as session:
        waiting.pause(session=session, by="anna")
        waiting.pause(session=session, by="ben")
    assert (startable(), len(order())) == ([], 4)
    with db.read() as session:
        assert waiting.paused(session=session).paused_by == "anna"
    with db.write() as session:
        waiting.unpause(session=session)
    assert len(startable()) == 4


def test_a_moved_run_that_is_lost_returns_to_its_place(four):
    d = four[3]
    move(d, before=four[0])
    requeue(claim(d.id))
    assert order() == ["d", "a", "b", "c"]


def test_a_resumed_run_returns_from_the_archive_to_the_end_of_the_queue(four):
    a = four[0]
    finish(claim(a.id), Status.STOPPED)
    with db.write() as session:
        runs.set_archived(session=session, run_id=a.id, archived=True)
    resume(a)
    assert (order(), now_of(a).archived_at) == (["b", "c", "d", "a"], None)


def test_only_queued_runs_have_a_place(four):
    running = claim(four[0].id)
    with db.write() as session, pytest.raises(NotWaiting, match="is running"):
        waiting.move(session=session, run_id=running.id, before=None)
    with db.write() as session, pytest.raises(NotWaiting, match="Only queued runs"):
        waiting.move(session=session, run_id=four[1].id, before=running.id)

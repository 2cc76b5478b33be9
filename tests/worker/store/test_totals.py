"""What a run took in all its attempts."""

import time

import pytest
from held_runs import claim, finish, now_of, resume

from app.documents import run as documents
from app.documents.live.reader import facts
from app.documents.results import export
from app.format.run_text import took
from worker.store import claims, metrics, run_list
from worker.store import database as db
from worker.store.metrics import Point
from worker.store.run_list import Query
from worker.store.tables import Attempt, Run, Status

HOUR = 3600.0


def ended(run, seconds, status=Status.STOPPED, **values):
    """Ends the run's attempt as if it had lasted so many seconds."""
    with db.write() as session:
        session.get(Run, run.id).working_since -= seconds
    finish(run, status, **values)


def resumed(run, waited):
    """Queues the run again, as if this were so many seconds later."""
    with db.write() as session:
        stored = session.get(Run, run.id)
        stored.started_at -= waited
        stored.finished_at -= waited
    resume(run)


def test_a_run_took_what_its_attempts_took(database, new_run):
    run = claim(new_run().id)
    ended(run, 120)
    resumed(run, 10 * HOUR)
    for shown in (now_of(run), now_of(claim(run.id))):
        assert shown.worked(time.time()) == pytest.approx(120, abs=5)
        assert took(documents.brief(shown).model_dump(mode="json"), time.time()) == pytest.approx(120, abs=5)
        with db.read() as session:
            query = Query(search="duration<10min", order_by="duration")
            assert [one.id for one in run_list.listing(session=session, query=query)] == [run.id]
    assert facts(now_of(run), None, None)["since"] == pytest.approx(time.time() - 120, abs=5)
    ended(now_of(run), 60, Status.FINISHED)
    assert now_of(run).worked_seconds == pytest.approx(180, abs=5)
    assert facts(now_of(run), None, None)["elapsed"].startswith("3 min")
    assert "3 min" in export.written([now_of(run)], "markdown")


def test_the_results_of_a_resumed_run_are_of_all_its_attempts(database, new_run):
    run = claim(new_run().id)
    first, later = 1_000.0, 100_000.0
    with db.write() as session:
        session.get(Run, run.id).step = 4
        points = []
        for step, at, tokens, speed in ((2, first, 100, 10), (4, first + 20, 200, 5)):
            values = {"tokens": tokens, "tokens_per_second": speed, "samples_per_second": 2.0}
            points += [Point(name, -1, step, at, value) for name, value in values.items()]
            points += [Point("gpu_power", 0, step, at, 300.0)]
        metrics.add(session=session, run_id=run.id, points=points)
    finish(run, Status.STOPPED)
    resume(run)
    second = claim(run.id)
    with db.write() as session:
        for number, start in ((1, first), (2, later)):
            attempt = session.get(Attempt, (run.id, number))
            attempt.started_at, attempt.ended_at = start, start + 100
    nothing = {"tokens_per_second": None, "samples_per_second": None, "train_seconds": 0.0, "energy_joules": 5.0}
    with db.write() as session:
        claims.finish(session=session, run_id=run.id, attempt=second.attempt, status=Status.FINISHED, summary=nothing)
    assert now_of(run).summary == {
        "tokens_per_second": pytest.approx(200 / 30),
        "samples_per_second": pytest.approx(2.0),
        "train_seconds": pytest.approx(30.0),
        "energy_joules": pytest.approx(5.0 + 20 * 300.0),
    }

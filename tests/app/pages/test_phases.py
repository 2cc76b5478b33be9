"""The phases of attempts as the Run page shows them."""

import re

from played_run import PlayedRun
from sqlmodel import insert
from web import client

from app.pages.run.attempts import timelines
from training.run_folder.events import PhaseStarted
from worker.store import database, history
from worker.store.history import PhaseBegan
from worker.store.tables import Attempt, RunEvent


def phase(name: str, time: float, attempt: int = 1) -> PhaseBegan:
    return PhaseBegan(attempt, time, name)


def test_repeated_interruptions_are_counted_and_training_is_not() -> None:
    names = ["training", "saving", "training", "saving", "training"]
    attempt = Attempt(run_id="r", number=1, started_at=0.0, ended_at=50.0, outcome="finished")
    events = [phase(name, 10.0 * n) for n, name in enumerate(names)]
    ((_, phases),) = timelines([attempt], events, now=99.0)
    assert [(one.name, one.seconds, one.times, one.each) for one in phases] == [
        ("training", 30.0, 3, None),
        ("saving", 20.0, 2, 10.0),
    ]


def test_the_present_phase_counts_from_its_time_before_so_that_the_page_stays_the_same() -> None:
    attempt = Attempt(run_id="r", number=1, started_at=0.0)
    events = [phase("training", 100.0), phase("saving", 110.0), phase("training", 115.0)]
    for now in (130.0, 190.0):
        ((_, phases),) = timelines([attempt], events, now)
        assert [one.since for one in phases] == [105.0, None]


def test_a_phase_has_one_color_in_every_run(home: None) -> None:
    colors = []
    for before in (("starting",), ("starting", "loading data", "loading model", "sampling")):
        run = (
            PlayedRun()
            .claim(f"host{len(before)}/cpu")
            .report(*(PhaseStarted(phase=name) for name in (*before, "training")))
        )
        text = client().get(f"/run?id={run.id}").text
        colors += re.findall(r'<li><i class="(shade-[0-9])"></i>training', text)
    assert colors == ["shade-4", "shade-4"]


def test_an_attempt_without_phases_shows_nothing() -> None:
    assert timelines([Attempt(run_id="r", number=1, started_at=0.0)], [], now=1.0) == []


def test_the_page_folds_those_of_earlier_attempts(home: None) -> None:
    run = PlayedRun().claim().report(PhaseStarted(phase="loading model"))
    text = client().get(f"/run?id={run.id}").text
    assert "loading model" in text and "earlier attempt" not in text


def test_thousands_of_evaluations_have_their_true_share(home: None) -> None:
    run, rows = PlayedRun().claim(), []
    for number in range(3000):
        for name, offset in (("training", 0.0), ("evaluating", 60.0)):
            began = 1000.0 + 61 * number + offset
            rows.append(
                {"run_id": run.id, "attempt": 1, "time": began, "kind": "phase", "level": "info", "message": name}
            )
    with database.write() as session:
        session.exec(insert(RunEvent), params=rows)
    with database.read() as session:
        events = history.phases(session=session, run_id=run.id)
    attempt = Attempt(run_id=run.id, number=1, started_at=1000.0, ended_at=1000.0 + 61 * 3000, outcome="finished")
    ((_, phases),) = timelines([attempt], events, now=0.0)
    assert {one.name: one.seconds for one in phases} == {"training": 180_000.0, "evaluating": 3000.0}

"""The phases of attempts as the Run page shows them."""

from app.pages.run.attempts import phases_html
from worker.store.tables import Attempt, RunEvent


def phase(name: str, time: float, attempt: int = 1) -> RunEvent:
    return RunEvent(run_id="r", attempt=attempt, time=time, kind="phase", message=name)


def test_repeated_interruptions_are_counted_and_training_is_not() -> None:
    names = ["training", "saving", "training", "saving", "training"]
    attempt = Attempt(run_id="r", number=1, started_at=0.0, ended_at=50.0, outcome="finished")
    html = phases_html([attempt], [phase(name, 10.0 * n) for n, name in enumerate(names)])
    assert "saving <b>20 s</b> <small>2 &times; 10 s</small>" in html
    assert "training <b>30 s</b></li>" in html


def test_an_attempt_without_phases_shows_nothing() -> None:
    assert phases_html([Attempt(run_id="r", number=1, started_at=0.0)], []) == ""

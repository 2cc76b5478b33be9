"""`lathe evaluate`: queues an evaluation, and waits for its end unless told not to."""

import json

import pytest
from commands import answer, lathe
from prepared import prepared_installation  # noqa: F401
from sqlmodel import select

from app.cli import evaluate
from worker.store import database, evaluations
from worker.store.tables import Evaluation, Status


@pytest.fixture
def polled(monkeypatch):
    """Ends the queued evaluation with the given status at the first time that the command waits for it."""
    outcome = {"status": Status.FINISHED, "waited": False}

    def ended(_seconds):
        outcome["waited"] = True
        with database.write() as session:
            item_id = session.exec(select(Evaluation.id).where(Evaluation.status == Status.QUEUED)).one()
            claim = {"owner": "host:1:1", "device": "host/cpu", "lease_seconds": 60}
            assert evaluations.claim(session=session, evaluation_id=item_id, **claim)
            summary = {"rows": 4, "metrics": {"exact_match": {"mean": 0.5, "low": 0.1, "high": 0.9, "rows": 4}}}
            end = {"attempt": 1, "status": outcome["status"], "summary": summary}
            evaluations.finish(session=session, evaluation_id=item_id, **end)

    monkeypatch.setattr(evaluate.time, "sleep", ended)
    return outcome


def options(prepared):
    return ["evaluate", prepared.finished, "--data", prepared.heldout, "--metric", "exact_match"]


@pytest.mark.parametrize(("status", "exit_code"), [(Status.FINISHED, 0), (Status.FAILED, 1), (Status.STOPPED, 3)])
def test_it_waits_for_the_end_and_exits_with_its_outcome(prepared, polled, status, exit_code):
    polled["status"] = status
    done = lathe(*options(prepared), "--json")
    assert (done.exit_code, json.loads(done.stdout)["status"]) == (exit_code, status)
    assert polled["waited"]


def test_with_queue_it_only_queues(prepared, polled):
    done = lathe(*options(prepared), "--queue")
    assert done.exit_code == 0
    assert f"lathe evaluations {prepared.finished}" in done.stdout
    assert answer("evaluations", prepared.finished)[0]["status"] == "queued"
    assert not polled["waited"]


def test_leaked_rows_are_left_out_where_that_is_asked_for(prepared, polled):
    assert json.loads(lathe(*options(prepared), "--queue", "--exclude-leaked-rows", "--json").stdout)[
        "exclude_leaked_rows"
    ]
    assert not json.loads(lathe(*options(prepared), "--queue", "--json").stdout)["exclude_leaked_rows"]


def test_scores_are_printed(prepared, polled):
    assert "Exact match: 50.0%" in lathe(*options(prepared)).stdout

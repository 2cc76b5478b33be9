"""Evaluations by REST, and the documents of their rows."""

import json

import pytest
from played_run import SUMMARY, PlayedRun
from web import client

from training.scoring.intervals import mean_interval
from worker.evaluations.submit import folder_of
from worker.settings import get_settings
from worker.store import accounts, database, evaluations
from worker.store.tables import Status


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "x"}) + "\n" for n in range(4)))
    return str(path)


@pytest.fixture
def run(home):
    played = PlayedRun("letters").claim()
    played.end(summary=SUMMARY)
    (get_settings().runs_dir / played.id / "adapter").mkdir(parents=True)
    return played.id


def queued(run, **asked):
    answer = client().post(f"/api/runs/{run}/evaluations", json=asked)
    assert answer.status_code == 201, answer.text
    return answer.json()


def finished(run, rows, right, source="result", count=200):
    """An evaluation whose first `right` answers are right, as its supervisor leaves it."""
    found = queued(run, data=rows, source=source, metrics=["exact_match"])
    with database.write() as session:
        item = evaluations.claim(
            session=session, evaluation_id=found["id"], owner="host:1:1", device="host/cpu", lease_seconds=60
        )
        scores = [float(row < right) for row in range(count)]
        low, high = mean_interval(scores)
        metrics = {"exact_match": {"mean": right / count, "low": low, "high": high, "rows": count}}
        summary = {"rows": count, "metrics": metrics}
        evaluations.finish(session=session, evaluation_id=item.id, attempt=1, status=Status.FINISHED, summary=summary)
    records = [
        {
            "row": row,
            "prompt": "p",
            "expected": "x",
            "answer": "x" if score else source,
            "scores": {"exact_match": score},
        }
        for row, score in enumerate(scores)
    ]
    folder_of(item).mkdir(parents=True, exist_ok=True)
    (folder_of(item) / "answers.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return item.id


def test_an_evaluation_is_queued_listed_stopped_and_deleted(run, rows):
    found = queued(run, data=rows, rows=2)
    assert (found["status"], found["data"], found["asked_rows"]) == ("queued", "rows.jsonl", 2)
    api = client()
    assert [one["id"] for one in api.get(f"/api/runs/{run}/evaluations").json()["evaluations"]] == [found["id"]]
    assert api.delete(f"/api/evaluations/{found['id']}").status_code == 409
    assert api.post(f"/api/evaluations/{found['id']}/stop").json()["status"] == "stopped"
    assert api.delete(f"/api/evaluations/{found['id']}").status_code == 204
    assert api.get(f"/api/evaluations/{found['id']}").status_code == 404


def test_wrong_values_are_answered_with_field_value_and_fix(run, rows):
    answer = client().post(f"/api/runs/{run}/evaluations", json={"data": rows, "metrics": ["bleu"]})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("metric 'bleu' is unknown; metrics are exact_match")


def test_an_evaluation_is_compared_with_the_one_before_training(run, rows):
    base, result = finished(run, rows, 60, source="base"), finished(run, rows, 100)
    found = client().get(f"/api/evaluations/{result}").json()
    assert found["against"]["evaluation"] == base
    assert found["against"]["scores"]["exact_match"]["verdict"] == "better"
    assert client().get(f"/api/evaluations/{base}").json()["against"] is None


def test_rows_are_sorted_by_score_and_by_difference(run, rows):
    base, result = finished(run, rows, 60, source="base"), finished(run, rows, 100)
    api = client()
    lowest = api.get(f"/api/evaluations/{result}/rows", params={"order": "lowest", "limit": 3}).json()
    assert ([row["row"] for row in lowest["rows"]], lowest["total"]) == ([101, 102, 103], 200)
    better = api.get(f"/api/evaluations/{result}/rows", params={"order": "better", "against": base, "limit": 1}).json()
    (row,) = better["rows"]
    assert (row["row"], row["difference"], row["other"], row["answer"]) == (61, 1.0, "base", "x")
    assert len(api.get(f"/api/evaluations/{result}/answers.jsonl").text.splitlines()) == 200


def test_runs_are_compared_by_their_evaluations_on_the_same_data(run, rows):
    other = PlayedRun("other").claim()
    other.end(summary=SUMMARY)
    (get_settings().runs_dir / other.id / "adapter").mkdir(parents=True)
    finished(run, rows, 100), finished(other.id, rows, 140)
    (found,) = client().get("/api/compare", params={"runs": f"{run},{other.id}"}).json()["against_first"]
    assert found["scores"]["exact_match"]["verdict"] == "better"
    assert found["scores"]["exact_match"]["rows"] == 200


def test_another_account_may_not_evaluate_a_run(run, rows):
    with database.write() as session:
        token = accounts.add(session=session, name="alice")
    alice = {"Authorization": f"Bearer {token}"}
    answer = client().post(f"/api/runs/{run}/evaluations", json={"data": rows}, headers=alice)
    assert answer.status_code == 403

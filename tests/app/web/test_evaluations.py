"""Evaluations by REST, and the documents of their rows."""

import json

import pytest
from played_run import PlayedRun
from prepared import ANSWERS, RIGHT, evaluated, prepared_installation  # noqa: F401
from web import client

from worker.settings import get_settings
from worker.store import accounts, database


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "x"}) + "\n" for n in range(4)))
    return str(path)


@pytest.fixture
def run(home):
    played = PlayedRun("letters").claim().end()
    (get_settings().runs_dir / played.id / "adapter").mkdir(parents=True)
    return played.id


def queued(run, **asked):
    answer = client().post(f"/api/runs/{run}/evaluations", json=asked)
    assert answer.status_code == 201, answer.text
    return answer.json()


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


def test_an_evaluation_is_compared_with_the_one_before_training(prepared):
    found = client().get(f"/api/evaluations/{prepared.result}").json()
    assert found["against"]["evaluation"] == prepared.base
    assert found["against"]["scores"]["exact_match"]["verdict"] == "better"
    assert client().get(f"/api/evaluations/{prepared.base}").json()["against"] is None


def test_rows_are_sorted_by_score_and_by_difference(prepared):
    api, place = client(), f"/api/evaluations/{prepared.result}"
    lowest = api.get(f"{place}/rows", params={"order": "lowest", "limit": 3}).json()
    first_wrong = RIGHT["result"] + 1
    assert [row["row"] for row in lowest["rows"]] == list(range(first_wrong, first_wrong + 3))
    assert lowest["total"] == ANSWERS
    better = api.get(f"{place}/rows", params={"order": "better", "against": prepared.base, "limit": 1}).json()
    (row,) = better["rows"]
    assert (row["row"], row["difference"], row["other"], row["answer"]) == (RIGHT["base"] + 1, 1.0, "base", "x")
    assert len(api.get(f"{place}/answers.jsonl").text.splitlines()) == ANSWERS


def test_runs_are_compared_by_their_evaluations_on_the_same_data(prepared):
    other = PlayedRun("other").claim().end()
    (get_settings().runs_dir / other.id / "adapter").mkdir(parents=True)
    evaluated(other.id, prepared.heldout, "result", 140)
    (found,) = client().get("/api/compare", params={"runs": f"{prepared.finished},{other.id}"}).json()["against_first"]
    assert found["scores"]["exact_match"]["verdict"] == "better"
    assert found["scores"]["exact_match"]["rows"] == ANSWERS


def test_an_unknown_decoding_is_refused_with_those_that_there_are(run, rows):
    queued(run, data=rows, decoding="model")
    answer = client().post(f"/api/runs/{run}/evaluations", json={"data": rows, "decoding": "beam"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["field"], error["value"]) == ("decoding", "beam") and "'greedy' or 'model'" in error["message"]


def test_another_account_may_not_evaluate_a_run(run, rows):
    with database.write() as session:
        token = accounts.add(session=session, name="alice")
    alice = {"Authorization": f"Bearer {token}"}
    answer = client().post(f"/api/runs/{run}/evaluations", json={"data": rows}, headers=alice)
    assert answer.status_code == 403


def test_a_metric_that_is_nested_too_deeply_is_refused(prepared):
    metric = '{"a":' * 3_000 + "1" + "}" * 3_000
    answer = client().post(
        f"/api/runs/{prepared.finished}/evaluations", json={"data": prepared.dataset, "metrics": [metric]}
    )
    assert answer.status_code == 422 and "levels of nesting" in answer.text

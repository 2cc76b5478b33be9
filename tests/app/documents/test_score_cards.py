"""Evaluations and runs whose score cards differ are not compared; rows without a score cost no other row."""

import json

import pytest
from played_run import SUMMARY, PlayedRun
from prepared import ANSWERS, prepared_installation  # noqa: F401
from web import client

from training.scoring.score_card import ScoreCard
from worker.evaluations import submit
from worker.settings import get_settings
from worker.store import database, evaluations, runs

CARD = ScoreCard(
    sha256="a", decoding={"search": "greedy", "max_new_tokens": 64}, metrics={"exact_match": "1", "judge": "2"}
)


def carded(evaluation, **changed):
    """Gives an evaluation a score card."""
    with database.write() as session:
        item = evaluations.get(session=session, evaluation_id=evaluation)
        item.summary = item.summary | {"card": CARD.model_copy(update=changed).document()}
        session.add(item)


def rewritten(evaluation, change):
    """Changes the scores of each row of an evaluation."""
    with database.read() as session:
        file = submit.folder_of(evaluations.get(session=session, evaluation_id=evaluation)) / "answers.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        record["scores"] = change(record["row"], record["scores"])
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def shown(evaluation):
    return client().get(f"/api/evaluations/{evaluation}").json()


def test_evaluations_with_equal_cards_are_compared_and_show_their_cards(prepared):
    for evaluation in (prepared.base, prepared.result):
        carded(evaluation)
    found = shown(prepared.result)
    assert (found["against"]["scores"]["exact_match"]["verdict"], found["against"]["differs"]) == ("better", [])
    assert found["card"]["decoding"] == {"search": "greedy", "max_new_tokens": 64}


def test_answers_with_another_limit_of_tokens_have_no_verdict_but_the_field_that_differs(prepared):
    carded(prepared.base)
    carded(prepared.result, decoding={"search": "greedy", "max_new_tokens": 8})
    against = shown(prepared.result)["against"]
    assert against["scores"] == {}
    assert against["differs"] == [{"field": "decoding.max_new_tokens", "first": 64, "second": 8}]


def test_another_judge_takes_the_verdict_of_the_judge_only(prepared):
    for evaluation in (prepared.base, prepared.result):
        rewritten(evaluation, lambda _, scores: scores | {"judge": 0.5})
        carded(evaluation, judge={"model": evaluation})
    against = shown(prepared.result)["against"]
    assert list(against["scores"]) == ["exact_match"]
    assert [one["field"] for one in against["differs"]] == ["judge.model"]


def test_one_row_without_a_score_is_left_out_and_counted(prepared):
    rewritten(prepared.result, lambda row, scores: {"exact_match": None} if row == 3 else scores)
    found = shown(prepared.result)["against"]["scores"]["exact_match"]
    assert (found["rows"], found["common"], found["verdict"]) == (ANSWERS - 1, ANSWERS, "better")


def test_evaluations_of_earlier_versions_with_other_limits_are_not_compared(prepared):
    with database.write() as session:
        item = evaluations.get(session=session, evaluation_id=prepared.result)
        item.request = item.request | {"max_new_tokens": 8}
        session.add(item)
    (differing,) = shown(prepared.result)["against"]["differs"]
    assert differing == {"field": "decoding.max_new_tokens", "first": None, "second": 8}


def test_models_that_were_compared_on_a_data_set_are_counted(prepared):
    from prepared import evaluated

    assert shown(prepared.result)["against"]["comparisons"] == 1
    for right in (70, 80):
        other = PlayedRun(f"other{right}").claim().end()
        (get_settings().runs_dir / other.id / "adapter").mkdir(parents=True)
        evaluated(other.id, prepared.heldout, "result", right)
    assert shown(prepared.result)["against"]["comparisons"] == 3


def answered(name, right, **changed):
    """A finished run with held-out answers, of which the first ones are right, and their card."""
    run = PlayedRun(name).claim()
    card = CARD.model_copy(update=changed).document()
    run.end(summary=SUMMARY | {"answers": {"rows": 100, "exact_match_after": right / 100, "card": card}})
    with database.write() as session:
        runs.get(session=session, run_id=run.id).fingerprints = {"data": "a" * 64}
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True)
    records = [{"row": row, "expected": "x", "match_after": row < right} for row in range(100)]
    (folder / "answers.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run.id


@pytest.mark.parametrize(("changed", "verdict"), [({}, "better"), ({"prompt": {"template_sha256": "other"}}, None)])
def test_runs_are_compared_if_their_cards_are_equal(home, changed, verdict):
    ids = ",".join([answered("first", 40), answered("second", 80, **changed)])
    (found,) = client().get("/api/compare", params={"runs": ids}).json()["against_first"]
    assert (found["scores"].get("exact_match") or {}).get("verdict") == verdict
    text = client().get("/api/compare.txt", params={"runs": ids}).text
    assert ("prompt.template_sha256 differs, other here and not recorded there" in text) == (verdict is None)
    best = client().get("/api/compare", params={"runs": ids}).json()["best"]
    assert ("exact_match_after" in best) == (verdict is not None)

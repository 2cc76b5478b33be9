"""Suites from finished evaluations: which checks pass, what names the cause, and JUnit XML."""

from xml.etree.ElementTree import fromstring

import commands
import pytest
from played_run import PlayedRun
from prepared import prepared_installation  # noqa: F401
from suite_parts import CASES, CLEAN, FORGETTING, finished
from web import client

from app.format.junit import junit
from worker.store import database, evaluations


def suite(prepared, exclude_leaked_rows=False, **found):
    """A finished suite of the prepared run, by REST."""
    asked = {"cases": CASES, "data": prepared.heldout, "shots": 2, "metrics": ["exact_match"]}
    asked["exclude_leaked_rows"] = exclude_leaked_rows
    answer = client().post(f"/api/runs/{prepared.finished}/suites", json=asked)
    assert answer.status_code == 201, answer.text
    queued = answer.json()
    assert (queued["status"], queued["passed"], len(queued["evaluations"])) == ("queued", None, 6)
    with database.read() as session:
        items = evaluations.of_suite(session=session, suite_id=queued["id"])
    for item in items:
        finished(item, **found)
    return client().get(f"/api/suites/{queued['id']}").json()


def failed(found):
    return {check["name"]: check["text"] for check in found["checks"] if check["state"] == "failed"}


def test_a_well_trained_model_passes_with_its_gain_over_the_base_and_the_few_shot_base(prepared):
    found = suite(prepared)
    assert (found["status"], found["passed"], failed(found)) == ("finished", True, {})
    texts = {check["name"]: check["text"] for check in found["checks"]}
    assert list(texts) == ["gain", "few_shot", "overfitting", "leak", "template", "forgetting", "text"]
    assert texts["gain"].startswith("exact_match against the base: better by 45.0 points")
    assert "the base with 2 training rows in its prompt: better by 25.0 points" in texts["few_shot"]
    assert (
        "+47.5 points on 200 training rows and +45.0 points on 200 held-out rows: a gap of +2.5" in texts["overfitting"]
    )
    assert found["verdicts"] == {"kept": 2, "fixed": 1, "broken": 0, "failing": 0}
    assert all(one["card"]["engine"] == "transformers 5" for one in found["evaluations"])


@pytest.mark.parametrize(
    ("changed", "check", "cause"),
    [
        (
            {"of_training": {"result": 198, "base": 60}},
            "overfitting",
            "exact_match against the base: +69.0 points on 200 training rows and +45.0 points on 200 held-out rows: a gap of +24.0",
        ),
        ({"forgetting": FORGETTING | {"kl": 4.2}}, "forgetting", "4.2 nats per token (limit 1). Over-trained: lower"),
        ({"forgetting": FORGETTING | {"loss_after": 8.0}}, "text", "3 before and 8 after training"),
        (
            {"overlap": CLEAN | {"equal": 30, "same_prompt": 30, "examples": [1, 2]}},
            "leak",
            "Leaked: 30 of 200 held-out rows are training rows",
        ),
        (
            {"prompt": {"trained_template_sha256": "u"}},
            "template",
            "Changed template: the result is saved with the template t",
        ),
    ],
)
def test_a_model_that_is_over_trained_leaked_or_has_a_changed_template_fails_with_the_cause(
    prepared, changed, check, cause
):
    found = suite(prepared, **changed)
    assert not found["passed"]
    assert list(failed(found)) == [check]
    assert cause in failed(found)[check]


def test_leaked_rows_that_are_left_out_are_no_failure(prepared):
    found = suite(
        prepared, overlap=CLEAN | {"equal": 30, "same_prompt": 30, "examples": [1, 2]}, exclude_leaked_rows=True
    )
    assert found["passed"] and of(found, "leak") == (
        "passed",
        "30 of 200 held-out rows are training rows, and left out.",
    )


def of(found, name):
    return next((check["state"], check["text"]) for check in found["checks"] if check["name"] == name)


def test_a_gap_that_is_not_shown_to_exceed_the_limit_is_no_failure_and_neither_are_rows_that_are_harder_for_the_base_too(
    prepared,
):
    assert of(suite(prepared, of_training={"result": 175, "base": 60}), "overfitting")[0] == "passed"
    assert of(suite(prepared, of_training={"result": 200, "base": 110}), "overfitting")[0] == "passed"


def test_rows_that_leaked_hide_a_gap_so_that_its_check_is_skipped_unless_it_fails(prepared):
    leaked = {"overlap": CLEAN | {"equal": 30, "same_prompt": 30, "examples": [1, 2]}}
    assert of(suite(prepared, **leaked), "overfitting") == (
        "skipped", "Held-out rows are training rows, so that a gap between them would not be seen.",
    )  # fmt: skip
    found = suite(prepared, **leaked, of_training={"result": 198, "base": 60})
    assert list(failed(found)) == ["overfitting", "leak"]


def test_a_suite_without_the_training_rows_has_a_verdict_and_says_why_one_check_is_missing(prepared):
    reason = {
        "field": "data",
        "value": "training rows",
        "message": "needs the training rows. It was deleted.",
        "fix": "Upload it.",
    }
    found = suite(prepared, of_training=reason)
    assert (found["status"], found["passed"]) == ("finished", True)
    assert of(found, "overfitting") == ("skipped", "needs the training rows. It was deleted. Upload it.")


def test_a_broken_case_fails_the_suite_and_is_a_failure_in_junit(prepared):
    found = suite(
        prepared, verdicts=("kept", "broken", "failing"), overlap={"problem": "The training data was deleted."}
    )
    assert not found["passed"] and failed(found) == {}
    root = fromstring(junit(found))
    (tests,) = root
    assert (tests.get("tests"), tests.get("failures"), tests.get("skipped"), tests.get("errors")) == (
        "10",
        "2",
        "1",
        "0",
    )
    messages = {
        case.get("name"): case.find("failure").get("message") for case in tests if case.find("failure") is not None
    }
    assert messages == {"2: Count: 1 2": "broken", "3: As JSON": "failing"}


def test_cases_of_the_same_reward_share_a_metric_and_others_have_their_own(prepared):
    found = suite(prepared)
    assert [case["expect"] for case in found["cases"]] == ["baseline", "contains", 'length {"most": 20}']


@pytest.mark.parametrize(
    ("case", "field", "message"),
    [
        ({"user": "a", "expect": "no_reward"}, "cases.1.expect", "is unknown."),
        ({"user": "a", "expect": "contains"}, "cases.1.expected", "is missing, which contains compares with."),
        ({"user": "a", "expect": {"reward": "length", "mots": 3}}, "cases.1.expect", "is no option of length."),
        ({"user": "a", "expect": "judge"}, "cases.1.expect", ""),
    ],
)
def test_a_wrong_expectation_is_refused_with_its_case(prepared, case, field, message):
    answer = client().post(f"/api/runs/{prepared.finished}/suites", json={"cases": [case]})
    assert answer.status_code == 422
    assert (answer.json()["error"]["field"], message in answer.json()["error"]["message"]) == (field, True)


def test_the_base_is_no_subject_of_a_suite_and_an_empty_suite_is_refused(prepared):
    for asked, field in (({"data": prepared.heldout, "source": "base"}, "source"), ({}, "cases")):
        answer = client().post(f"/api/runs/{prepared.finished}/suites", json=asked)
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


def test_the_command_lists_suites_with_checks_and_cases(prepared):
    suite(prepared, verdicts=("kept", "broken", "kept"))
    output = commands.lathe("suites", prepared.finished).output
    assert "failed" in output and "broken: case 2" in output and "forgetting" in output


def test_runs_are_compared_with_their_suites(prepared):
    suite(prepared, verdicts=("kept", "broken", "kept"))
    other = PlayedRun("other").claim().end()
    found = client().get("/api/compare", params={"runs": f"{prepared.finished},{other.id}"}).json()
    assert found["measures"]["suite"] == ["failed: 1 broken", None]

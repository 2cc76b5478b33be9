"""The part Evaluations of the page Run in a real browser: queue, show, sort, compare, delete."""

import json

import pytest
from browser import IN_BROWSER, says
from played_run import SUMMARY, PlayedRun

from training.scoring.intervals import mean_interval
from worker.datasets import datasets
from worker.evaluations.submit import folder_of, submit
from worker.settings import get_settings
from worker.store import database, evaluations
from worker.store.tables import Status

pytestmark = IN_BROWSER


@pytest.fixture
def run(page, tmp_path):
    """A finished run and a data set."""
    played = PlayedRun("letters").claim()
    played.end(summary=SUMMARY)
    (get_settings().runs_dir / played.id / "adapter").mkdir(parents=True)
    path = tmp_path / "held.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "x"}) + "\n" for n in range(4)))
    return played.id, datasets.add_file(path=path, name="held.jsonl").id


def finished(run, data, right, source, **besides):
    item = submit(run, {"source": source, "metrics": ["exact_match"]}, data=data)
    scores = [float(row < right) for row in range(40)]
    low, high = mean_interval(scores)
    summary = {
        "rows": 40,
        "metrics": {"exact_match": {"mean": right / 40, "low": low, "high": high, "rows": 40}},
    } | besides
    with database.write() as session:
        held = {"session": session, "evaluation_id": item.id}
        assert evaluations.claim(**held, owner="host:1:1", device="host/cpu", lease_seconds=60)
        evaluations.finish(**held, attempt=1, status=Status.FINISHED, summary=summary)
    records = [
        {"row": row, "prompt": "p", "expected": "x", "answer": f"{source} <b>", "scores": {"exact_match": score}}
        for row, score in enumerate(scores)
    ]
    folder_of(item).mkdir(parents=True)
    (folder_of(item) / "answers.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return item.id


def test_an_evaluation_is_queued_from_the_page_and_its_problems_shown(page, run):
    run_id, data = run
    page.goto(f"/run?id={run_id}")
    says(page, "#evaluations", "No evaluations yet.")
    page.get_by_role("button", name="Evaluate").click()
    says(page, "#evaluations .alert", "is missing.", "Give a data file or a data set id.")
    page.get_by_label("Data set").first.select_option(data)
    page.get_by_label("ROUGE-1").check()
    page.get_by_label("JSON fields equal").check()
    page.locator("#evaluation-leaked").check()
    page.get_by_role("button", name="Evaluate").click()
    says(page, "table.evaluations", "queued", "held.jsonl")
    assert page.locator("#evaluation-data").input_value() == data  # for the next one
    with database.read() as session:
        (item,) = evaluations.of_run(session=session, run_id=run_id)
    assert (item.request["metrics"], item.request["rows"]) == (["exact_match", "f1", "rouge1", "json_fields"], None)
    assert item.asked.exclude_leaked_rows


def test_what_is_typed_for_an_evaluation_stays_while_the_page_changes(page, run, tmp_path):
    run_id, _ = run
    page.goto(f"/run?id={run_id}")
    page.locator("#evaluation-more summary").click()
    page.locator("#evaluation-own").fill("def words(prompt")
    page.get_by_label("Token F1").uncheck()
    (tmp_path / "more.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    datasets.add_file(path=tmp_path / "more.jsonl", name="more.jsonl")
    page.evaluate("lathe.view.follow()")
    page.locator("#evaluation-data option", has_text="more.jsonl").wait_for(state="attached")
    assert page.locator("#evaluation-own").input_value() == "def words(prompt"
    assert not page.get_by_label("Token F1").is_checked() and page.get_by_label("Exact match").is_checked()
    assert page.locator("#evaluation-own").is_visible()


@pytest.mark.nightly
def test_metrics_written_in_the_form_are_queued_by_the_names_of_their_functions(page, run):
    run_id, data = run
    page.goto(f"/run?id={run_id}")
    page.get_by_label("Data set").first.select_option(data)
    page.locator("#evaluation-more summary").click()
    code = page.locator("#evaluation-own")
    code.fill("def _help(x):\n    return x\n\ndef words(prompt, answer, expected)")
    page.get_by_role("button", name="Evaluate").click()
    says(page, "#evaluations .alert", "own.py", "is not valid Python: line 4")
    code.fill("def words(prompt, answer, expected): return len(answer.split())")
    page.get_by_role("button", name="Evaluate").click()
    says(page, "table.evaluations", "queued")
    with database.read() as session:
        (item,) = evaluations.of_run(session=session, run_id=run_id)
    assert item.request["metrics"][-1] == "own.py:words"
    assert "len(answer.split())" in item.request["own"]["own.py"]


def test_answers_are_compared_and_sorted_and_an_evaluation_deleted_after_a_question(page, run):
    run_id, data = run
    finished(run_id, data, 10, "base")
    engine = {"name": "transformers", "reason": "vllm: the adapter <b> uses DoRA."}
    fault = {"failed": 2, "sentence": "row 5, own.py, line 8: KeyError: 'total'", "kind": "exception"}
    result = finished(run_id, data, 30, "result", engine=engine, troubles={"own.py:<i>": fault})
    page.goto(f"/run?id={run_id}")
    says(
        page,
        "table.evaluations",
        "75.0%",
        "better by 50.0 points",
        "Answered by transformers. vllm: the adapter <b> uses",
        "own.py:<i> has no score for 2 rows: row 5, own.py, line 8: KeyError: 'total'.",
    )
    page.get_by_role("link", name=result).click()
    says(page, "table.rows-of-evaluation", "Difference", "result <b>")
    page.get_by_text("Score card: what these scores depend on").click()
    says(page, "#score-card dl", "held.jsonl", "exact_match")
    page.get_by_label("Order").select_option("Most better first")
    page.wait_for_function("() => document.querySelector('table.rows-of-evaluation tbody td').innerText === '11'")
    page.get_by_label("Compared with").select_option("no other evaluation")
    page.locator("table.rows-of-evaluation", has_not_text="Difference").wait_for()
    page.get_by_role("button", name=f"Delete evaluation {result}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.locator("table.evaluations th", has_text=result).wait_for(state="detached")

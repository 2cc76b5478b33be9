"""The page Data sets: imports, the list, and removing a data set."""

import json
from dataclasses import asdict
from typing import Any

from browser import IN_BROWSER, says
from patience import eventually
from played_run import PlayedRun
from web import client

from app.access.dataset_imports import Intake, intakes
from app.format.dataset_text import removal
from training.data.survey import Issue
from worker.datasets import datasets
from worker.store import database, runs
from worker.store.tables import Dataset, Run, Status
from worker.store.uses import DatasetUse

SCRIPT = "<script>alert(1)</script>"


def stored(tmp_path, name="sums.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps({"prompt": f"{n} of {name}", "completion": f"{n}"}) + "\n" for n in range(4)))
    return datasets.add_file(path=path, name=name)


def change(item, **values: Any):
    with database.write() as session:
        row = session.get(Dataset, item.id)
        for name, value in values.items():
            setattr(row, name, value)
        session.add(row)


def use(item):
    """A queued run that trains on the data set."""
    with database.write() as session:
        run = session.get(Run, PlayedRun().id)
        run.dataset_id = item.id
        session.add(run)
    return run


def text(query=""):
    return client().get(f"/datasets{query}").text


def test_the_list_counts_runs_and_names_warnings_and_what_needs_a_mapping(home, tmp_path):
    item, odd = stored(tmp_path), stored(tmp_path, "odd.jsonl")
    change(item, name=SCRIPT, warnings=[asdict(Issue("warning", "a.jsonl", 1, "", "odd", "", 1))])
    change(odd, row_format="unknown")
    use(item)
    html = text()
    assert SCRIPT not in html and "&lt;script&gt;" in html
    assert ">1 run<" in html and ">1 warning</a>" in html
    assert f'<a href="/dataset?id={odd.id}&amp;tab=columns" class="tag bad">needs a mapping' in html
    assert f'href="/new?data={item.id}"' in html


def test_a_search_narrows_the_list(home, tmp_path):
    stored(tmp_path), stored(tmp_path, "letters.jsonl")
    html = text("?search=letters")
    assert "letters.jsonl" in html and "sums.jsonl" not in html
    assert "No data sets match “nothing like it”." in text("?search=nothing+like+it")


def test_without_data_sets_the_sample_is_offered_and_imported(home):
    assert "Add the starter sample" in text() and 'href="/new-dataset"' in text()
    begun = client().post("/api/datasets/imports", json={"sample": True})
    assert begun.status_code == 202
    ended = eventually(lambda: (one := intakes.get(begun.json()["id"])).state != "checking" and one)
    assert (ended.state, ended.paired) == ("done", True)
    assert "train.jsonl" in text()


def test_removal_names_the_runs_that_use_the_data_set(home, tmp_path):
    running, ended = DatasetUse("r1", SCRIPT, Status.RUNNING), DatasetUse("r2", "old", Status.FINISHED)
    assert removal("a", [running, ended]) == {
        "heading": "Remove a?",
        "text": f"In use by {SCRIPT}. Stop these runs first.",
        "label": "",
    }
    assert "keep their settings and results" in removal("a", [ended])["text"]
    assert "No run uses it" in removal("a", [])["text"]


def test_a_data_set_of_a_queued_run_is_not_removed_and_an_unused_one_is(home, tmp_path):
    item = stored(tmp_path)
    run = use(item)
    api = client()
    assert api.delete(f"/api/datasets/{item.id}").status_code == 409
    with database.write() as session:
        runs.request_stop(session=session, run_id=run.id)
    assert api.delete(f"/api/datasets/{item.id}").status_code == 204
    assert "No data sets yet" in text()


def test_imports_are_shown_while_checking_when_refused_and_when_done(home, monkeypatch):
    problem = {"level": "error", "file": "b.csv", "line": 3, "message": "is odd.", "fix": "Mend it."}
    listed = [
        Intake(1, SCRIPT, 2**20, 0.0),
        Intake(2, "b.csv", 1, 0.0, "refused", problems=[problem]),
        Intake(3, "c", 1, 0.0, "done", added=[("1", "train.jsonl"), ("2", "val.jsonl")], paired=True),
    ]
    monkeypatch.setattr(intakes, "all", lambda: listed)
    html = text()
    assert SCRIPT not in html and "1.0 MiB" in html and "b.csv, row 3:" in html
    assert 'Could not import <b class="bad">b.csv</b>.' in html
    assert 'href="/new?data=1&amp;validation_data=2"' in html
    assert 'data-do="DELETE /api/datasets/imports/2"' in html


class TestInChromium:
    pytestmark = IN_BROWSER

    def test_a_data_set_is_removed_after_a_question_that_names_its_runs(self, page, tmp_path):
        item = stored(tmp_path)
        run = use(item)
        page.goto("/datasets")
        page.get_by_role("button", name="Remove sums.jsonl").click()
        says(page, "#ask", "In use by letters")
        assert not page.locator("#ask [data-confirm]").is_visible()
        page.keyboard.press("Escape")
        with database.write() as session:
            runs.request_stop(session=session, run_id=run.id)
        page.locator("button[data-ask*='Used by']").click()
        says(page, "#ask", "cannot be resumed")
        page.locator("#ask [data-confirm]").click()
        says(page, ".empty", "No data sets yet")

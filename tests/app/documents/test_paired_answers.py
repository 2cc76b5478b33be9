"""Runs of a comparison by their answers to the same held-out rows, and a run before and after training."""

import json
import os

import numpy as np
import pytest
from played_run import SUMMARY, PlayedRun
from web import client

from app.documents.comparison.paired import held_out
from app.documents.results.evaluations import paired
from training.results.answers import changes
from training.scoring.paired import in_words
from worker.settings import get_settings
from worker.store import database, runs

ROWS = 200


def answered(name, right, digest="a" * 64, rows=ROWS):
    """A finished run whose answers to the first `right` of its held-out rows are right."""
    return stored(name, [row < right for row in range(rows)], digest)


def stored(name, matches, digest="a" * 64):
    """A finished run with a held-out answer for each of `matches`, right or wrong."""
    run = PlayedRun(name).claim()
    run.end(summary=SUMMARY)
    with database.write() as session:
        runs.get(session=session, run_id=run.id).fingerprints = {"data": digest}
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True)
    records = [
        {"row": row, "prompt": "p", "expected": "x", "before": "", "after": "", "match_before": False, "match_after": bool(right),
         "f1_before": 0.0, "f1_after": 1.0 if right else 0.5}
        for row, right in enumerate(matches)
    ]  # fmt: skip
    (folder / "answers.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run.id


def against(ids):
    found = client().get("/api/compare", params={"runs": ",".join(ids)})
    assert found.status_code == 200, found.text
    return found.json()["against_first"]


def test_each_run_is_compared_with_the_first_by_row(home):
    first, tie, better = answered("first", 100), answered("tie", 102), answered("better", 130)
    second, third = against([first, tie, better])
    assert (second["run"], second["scores"]["exact_match"]["verdict"]) == (tie, "no difference shown")
    assert third["scores"]["exact_match"] == third["scores"]["exact_match"] | {
        "difference": pytest.approx(0.15), "verdict": "better", "rows": ROWS,
    }  # fmt: skip
    assert third["scores"]["f1"]["difference"] == pytest.approx(0.075)


def test_only_rows_that_both_answered_count(home):
    (found,) = against([answered("first", 100), answered("fewer", 100, rows=150)])
    assert found["scores"]["exact_match"]["rows"] == 150


def test_other_data_and_missing_answers_are_named(home):
    first, silent = answered("first", 100), PlayedRun("silent").claim()
    silent.end(summary=SUMMARY)
    other, same = answered("other", 100, digest="b" * 64), answered("same", 100)
    found = against([first, other, silent.id, same])
    assert [one["reason"] for one in found] == [
        "It did not answer the same rows as the first run.", "It has no answers on this machine.", "",
    ]  # fmt: skip


def test_runs_without_answers_are_not_compared(home):
    assert against([PlayedRun("one").id, PlayedRun("two").id]) == []


def test_markdown_and_text_say_what_is_shown(home):
    ids = ",".join([answered("first", 100), answered("better", 130)])
    markdown = client().get("/api/compare.md", params={"runs": ids}).text
    assert "| better | Exact match | better by 15.0 points (95% interval" in markdown
    text = client().get("/api/compare.txt", params={"runs": ids}).text
    assert "Held-out answers against first:" in text


def matches(seed, rows, gain=0.0):
    """Which rows a model answers rightly: rows have their difficulty, and a seed changes a tenth of the answers."""
    share = np.clip(np.random.default_rng(99).beta(0.3, 0.2, rows) + gain, 0, 1)
    return np.random.default_rng(seed).random(rows) < share


def text(*ids):
    return client().get("/api/compare.txt", params={"runs": ",".join(ids)}).text


def test_two_seeds_are_called_a_tie_and_a_gain_of_5_points_at_500_rows_a_gain(home):
    first, second = stored("one", matches(1, 160)), stored("other", matches(2, 160))
    assert "no difference shown at 160 rows" in text(first, second)
    before = np.random.default_rng(5).random(500) < 0.6
    after = before.copy()
    after[np.flatnonzero(~before)[:40]] = True
    after[np.flatnonzero(before)[:15]] = False
    assert "better by 5.0 points (95% interval +" in text(stored("before", before), stored("after", after))


@pytest.mark.slow
def test_of_200_pairs_of_seeds_at_most_5_percent_are_called_better_from_stored_answers_to_the_text(home):
    run = stored("run", matches(0, 160))
    with database.read() as session:
        row = runs.get(session=session, run_id=run)
    path = get_settings().runs_dir / run / "answers.jsonl"

    def scored(seed):
        records = [{"row": n, "expected": "x", "match_after": bool(one)} for n, one in enumerate(matches(seed, 160))]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        os.utime(path, ns=(seed, seed))  # another version of the file
        return held_out(row)

    said = [in_words(paired(scored(2 * pair + 1), scored(2 * pair + 2)).scores["exact_match"]) for pair in range(200)]
    assert sum(words.startswith("better") for words in said) <= 10
    assert sum(words.startswith("no difference shown at 160 rows") for words in said) >= 180


def test_the_summary_says_whether_answers_are_better_after_training():
    rows = [
        {f"{name}_{moment}": float(moment == "after" and row < 20) for name in ("match", "f1", "rouge1", "rouge2", "rougeL")
         for moment in ("before", "after")}
        for row in range(100)
    ]  # fmt: skip
    found = changes(rows)
    assert list(found) == ["exact_match", "f1", "rouge1", "rouge2", "rougeL"]
    assert (found["f1"]["verdict"], found["f1"]["difference"]) == ("better", pytest.approx(0.2))

"""Files of answers may have hundreds of thousands of rows: their pages are read, and not the whole files."""

import gc
import json
import tracemalloc
from types import SimpleNamespace

import pytest

from app.documents.results import answers, evaluated_rows, evaluations
from training import json_files
from worker.settings import get_settings

ROWS = 20_000


@pytest.fixture
def folder(home):
    path = get_settings().runs_dir / "run"
    path.mkdir(parents=True)
    return path


def written(folder, records):
    folder.mkdir(exist_ok=True)
    (folder / "answers.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def answered(row, before=False, after=True, gain=0.0, text="x"):
    matches = {"match_before": before, "match_after": after, "f1_before": 0.0, "f1_after": gain}
    return {"row": row, "prompt": text, "expected": "e", "before": "b", "after": f"a{row}"} | matches


def scored(row, score, text="x"):
    return {"row": row, "prompt": text, "expected": "e", "answer": f"a{row}", "scores": {"f1": score}}


@pytest.fixture
def evaluation(folder, monkeypatch):
    """Makes evaluations with these records."""
    monkeypatch.setattr(evaluated_rows, "folder_of", lambda item: folder / item.id)

    def make(name, records):
        written(folder / name, records)
        return SimpleNamespace(id=name)

    return make


def peak_of(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_answers_are_sorted_by_change_then_by_the_difference_and_read_by_slices(folder):
    written(
        folder,
        [
            answered(0, gain=0.1),
            answered(1, after=False),
            answered(2, gain=-0.9),
            answered(3, before=True, after=False),
        ],
    )
    found = answers.answers_of("run")
    assert [one.row for one in found[:10]] == [3, 1, 4, 2]
    assert [one.row for one in found.of("became wrong")[:10]] == [4]
    assert [one.after for one in found.of("became right")[1:2]] == ["a0"]
    assert list(found.counts.values()) == [2, 1, 1, 0]
    assert (len(found), len(found.of("all")), len(found.of("unchanged"))) == (4, 4, 0)


def test_rows_are_sorted_by_a_score_or_its_difference(evaluation):
    mine = evaluation("mine", [scored(0, 0.5), scored(1, None), scored(2, 0.9), scored(3, 0.1)])
    theirs = evaluation("theirs", [scored(3, 1.0), scored(0, 0.4), scored(1, 1.0)])

    def numbers(order, against=None):
        return [row.row for row in evaluated_rows.rows(mine, against, "f1", order)[:10]]

    assert numbers("row") == [1, 2, 3, 4]
    assert numbers("lowest") == [4, 1, 3, 2] and numbers("highest") == [3, 1, 4, 2]
    assert numbers("worse", theirs) == [4, 1, 2, 3] and numbers("better", theirs) == [1, 4, 2, 3]
    (worst,) = evaluated_rows.rows(mine, theirs, "f1", "worse")[:1]
    assert (worst.difference, worst.answer, worst.other) == (pytest.approx(-0.9), "a3", "a3")
    assert evaluated_rows.rows(SimpleNamespace(id="none"))[:10] == []


def test_a_page_of_a_long_file_takes_little_memory(folder, evaluation):
    text = "word " * 200
    written(folder, (answered(row, gain=row / ROWS, text=text) for row in range(ROWS)))
    long = evaluation("long", (scored(row, row / ROWS, text) for row in range(ROWS)))
    assert peak_of(lambda: answers.answers_of("run")[:25]) < 8 * 2**20  # all rows take 40 MB
    assert peak_of(lambda: evaluated_rows.rows(long, long, "f1", "worse")[:25]) < 8 * 2**20


def test_long_rows_are_read_in_parts(folder, evaluation, monkeypatch):
    monkeypatch.setattr(json_files, "MOST_PART_BYTES", 300)
    rows = [scored(row, 0.5, "x" * 100) for row in range(9)]
    mine, theirs = evaluation("mine", rows), evaluation("theirs", rows)
    found = evaluated_rows.rows(mine, theirs, "f1", "row")
    assert [row.row for row in found[:9]] == [1, 2]
    assert [row.row for row in found[2:9]] == [3, 4]
    long = evaluation("long", [scored(row, 0.5, "x" * 1000) for row in range(9)])
    assert [row.row for row in evaluated_rows.rows(mine, long, "f1", "row")[:9]] == [1]
    written(folder, [answered(row, text="x" * 100) for row in range(9)])
    assert [one.row for one in answers.answers_of("run")[:9]] == [1, 2]


def scores_of(folder, *records):
    written(folder / "file", records)
    return evaluations.read_scores(folder / "file" / "answers.jsonl", "data", lambda record: record["scores"])


def test_more_scores_than_can_be_compared_are_not_compared(folder, monkeypatch):
    assert len(scores_of(folder, *(scored(row, 0.5) for row in range(4)))) == 4
    wide = {"row": 0, "expected": "e", "scores": dict.fromkeys(map(str, range(evaluated_rows.MOST_SCORES + 1)), 0.5)}
    with pytest.raises(ValueError, match="too many scores"):
        scores_of(folder, wide)
    others = [wide | {"row": row, "scores": {str(row): 0.5}} for row in range(evaluated_rows.MOST_SCORES + 1)]
    with pytest.raises(ValueError, match="too many scores"):
        scores_of(folder, *others)
    monkeypatch.setattr(evaluations, "_MOST_SCORED", 10)
    with pytest.raises(ValueError, match="too many scores"):
        scores_of(folder, *(scored(row, 0.5) for row in range(4)))


def test_what_two_files_show_together_is_forgotten_with_one_of_them():
    first, second = (evaluations.ScoredRows({("data", 0, b""): {"f1": score}}) for score in (0.5, 0.6))
    found = evaluations.paired(first, second)
    assert evaluations.paired(first, second) is found
    assert len(first.comparisons) == 1
    del second
    gc.collect()
    assert len(first.comparisons) == 0


ODD = (
    [], 5, {}, {"row": "x", "scores": {}}, {"row": 1, "scores": 5}, {"row": 1, "scores": {"f1": "x"}}, {"row": 1e400, "scores": {}},
)  # fmt: skip


def test_files_of_anything_else_have_no_rows(evaluation, folder):
    for number, odd in enumerate(ODD):
        item = evaluation(f"odd{number}", [scored(0, 0.5), odd])
        assert evaluated_rows.rows(item, None, "f1", "lowest")[:5] == []
        with pytest.raises(evaluated_rows.NOT_READABLE):
            scores_of(folder, scored(0, 0.5), odd)
    (shown,) = evaluated_rows.rows(evaluation("short", [{"row": 1, "scores": {"other": "x"}}]))[:5]
    assert (shown.prompt, shown.scores) == ("", {"other": None})

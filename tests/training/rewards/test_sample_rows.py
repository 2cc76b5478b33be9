"""The rows whose samples rewards score: who asked for them gets no more than its memory takes."""

import json

import pytest

from training.errors import UserError
from training.rewards import sample_rows


@pytest.fixture
def rows(tmp_path):
    """A file of rows of 1,000 characters each."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "x" * 1000}) + "\n" for n in range(50)))
    return path


def asked(path, first=None, rows=None):
    text = {"path": str(path), "name": "rows.jsonl", "columns": None, "first": first, "rows": rows}
    return [sample["number"] for sample in sample_rows.samples(json.dumps(text))["samples"]]


def test_the_first_rows_or_those_that_are_named_are_samples(rows):
    assert asked(rows, first=3) == [0, 1, 2]
    assert asked(rows, rows=[7, 40]) == [7, 40]


def test_rows_that_are_too_long_together_are_refused(rows, monkeypatch):
    monkeypatch.setattr(sample_rows, "MOST_CHARACTERS", 30_000)  # a row has its text twice
    assert len(asked(rows, first=10)) == 10
    for wanted in ({"first": 50}, {"rows": [*range(50)]}):
        with pytest.raises(UserError, match="more than 30,000 characters"):
            asked(rows, **wanted)

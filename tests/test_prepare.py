"""What a run finds out about its data before the first step."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model

from training.config import RunConfig
from training.data import TokenView
from training.events import Note, decode
from training.failure import DataError
from training.prepare import Data, prepare_data
from training.report import EVENTS_FILE, Report
from training.tokenizer import load
from worker.launcher import Launch
from worker.settings import get_settings
from worker.trainer import environment


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"prompt": f"{n}?", "completion": f"{n}!" * 3, "topic": "ab"[n % 4 == 0]} for n in numbers]


def prepared(run_dir: Path, model: Path, data: Path, **settings: Any) -> tuple[Data, list[str]]:
    """The data, and what was noted of them."""
    run_dir.mkdir(exist_ok=True)
    config = RunConfig.model_validate({"model": str(model), "data": str(data)} | settings)
    found = prepare_data(config, run_dir, load(str(model)), Report(run_dir, rank=0))
    events = [decode(line) for line in (run_dir / EVENTS_FILE).read_bytes().splitlines()]
    return found, [event.message for event in events if isinstance(event, Note)]


def test_held_out_rows_that_are_trained_on_too_are_named(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "train.jsonl", rows(20))
    held_out = write(tmp_path / "held-out.jsonl", rows(4, first=18))
    _, notes = prepared(tmp_path / "run", model, data, validation_data=str(held_out))
    assert [note for note in notes if "in the training data too" in note] == [
        "2 held-out rows are in the training data too (row 1 is row 19, row 2 is row 20): evaluation looks better than it is."
    ]


def test_a_row_that_stands_twice_is_named_where_the_split_parts_the_two(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "train.jsonl", rows(10) * 2)
    _, notes = prepared(tmp_path / "run", model, data, eval_split=5)
    assert any("held-out rows are in the training data too" in note for note in notes)


def test_nothing_is_noted_of_data_that_are_in_order(tmp_path: Path, model: Path) -> None:
    assert prepared(tmp_path / "run", model, write(tmp_path / "train.jsonl", rows(20)))[1] == []


def test_rows_that_are_empty_cut_off_or_teach_nothing_are_counted(tmp_path: Path, model: Path) -> None:
    bad = [
        {"prompt": "x" * 40, "completion": "y"},
        {"prompt": "a", "completion": "z" * 40},
        {"prompt": "a", "completion": ""},
    ]
    found, notes = prepared(tmp_path / "run", model, write(tmp_path / "train.jsonl", rows(5) + bad), max_length=20)
    assert (found.skipped_rows, found.truncated_rows) == (1, 2)
    assert [note.split(" ")[0] for note in notes] == ["1", "1", "2"]


def test_held_out_rows_are_drawn_from_every_value_of_a_column(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "train.jsonl", rows(40))
    found, _ = prepared(tmp_path / "run", model, data, eval_split=0.2, stratify_by="topic", data_slice="50%")
    held_out = [row for row, _ in found.held_out_examples()]
    assert len(held_out) == 4 and max(held_out) < 20
    assert [row % 4 for row in held_out].count(0) == 1
    with pytest.raises(DataError, match="no column 'subject'"):
        prepared(tmp_path / "other", model, data, stratify_by="subject")


def test_the_tokens_are_taken_from_where_the_supervisor_says(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = get_settings()
    for name, value in environment(Launch([], {}), "run", settings).items():
        monkeypatch.setenv(name, value)
    data = write(tmp_path / "train.jsonl", rows(20))
    first, _ = prepared(tmp_path / "one", model, data)
    made = {path.name: path.stat().st_ino for path in settings.tokens_dir.glob("*-*/facts.json")}
    again, _ = prepared(tmp_path / "two", model, data)
    assert {path.name: path.stat().st_ino for path in settings.tokens_dir.glob("*-*/facts.json")} == made
    assert not (tmp_path / "one" / "tokens").exists()
    assert isinstance(first.train, TokenView) and isinstance(again.train, TokenView)
    assert first.train.rows.tolist() == again.train.rows.tolist()

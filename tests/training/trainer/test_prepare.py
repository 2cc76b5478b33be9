"""The checks and notes on a run's data before the first step."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tiny import make_model

from training.batches.views import TokenView
from training.chat.tokenizer import load
from training.config.run_config import RunConfig
from training.errors import DataError
from training.reports.report import Report
from training.run_folder.events import Note, decode
from training.run_folder.paths import EVENTS_FILE
from training.trainer.prepare import Data, prepare_data
from worker.settings import get_settings
from worker.supervision.launcher import Launch
from worker.supervision.training_process import environment


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"prompt": f"{n}?", "completion": f"{n}!" * 3, "topic": "ab"[n % 4 == 0]} for n in numbers]


def prepared(run_dir: Path, model: Path, data: Path | list[dict[str, Any]], **settings: Any) -> tuple[Data, list[str]]:
    """Returns the data, and the notes about it."""
    run_dir.mkdir(exist_ok=True)
    config = RunConfig.model_validate(
        {"model": str(model), "data": str(data) if isinstance(data, Path) else data} | settings
    )
    prepared_data = prepare_data(config, run_dir, load(str(model)), Report(run_dir, rank=0))
    events = [decode(line) for line in (run_dir / EVENTS_FILE).read_bytes().splitlines()]
    return prepared_data, [event.message for event in events if isinstance(event, Note)]


def test_held_out_rows_in_the_training_data_are_named(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "train.jsonl", rows(20))
    held_out = write(tmp_path / "held-out.jsonl", rows(4, first=18))
    _, notes = prepared(tmp_path / "run", model, data, validation_data=str(held_out))
    assert [note for note in notes if "in the training data" in note] == [
        "2 held-out rows are also in the training data (row 1 is row 19, row 2 is row 20): evaluation looks better than it is."
    ]


def test_a_duplicate_row_in_both_splits_is_named(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "train.jsonl", rows(10) * 2)
    _, notes = prepared(tmp_path / "run", model, data, eval_split=5, group_by=None)
    assert any("held-out rows are also in the training data" in note for note in notes)
    assert any("of 5 held-out rows are near duplicates of training rows" in note for note in notes)
    assert prepared(tmp_path / "other", model, data, eval_split=5)[1] == []  # near duplicates stay on one side


def test_clean_data_gets_no_notes(tmp_path: Path, model: Path) -> None:
    assert prepared(tmp_path / "run", model, write(tmp_path / "train.jsonl", rows(20)))[1] == []


def test_empty_truncated_and_lossless_rows_are_counted(tmp_path: Path, model: Path) -> None:
    bad = [
        {"prompt": "x" * 40, "completion": "y"},
        {"prompt": "a", "completion": "z" * 40},
        {"prompt": "a", "completion": ""},
    ]
    result, notes = prepared(tmp_path / "run", model, write(tmp_path / "train.jsonl", rows(5) + bad), max_length=20)
    assert (result.skipped_rows, result.truncated_rows) == (1, 2)
    assert [note.split(" ")[0] for note in notes] == ["1", "1", "2"]


def test_stratify_by_holds_out_rows_of_every_value(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "train.jsonl", rows(40))
    result, _ = prepared(tmp_path / "run", model, data, eval_split=0.2, stratify_by="topic", data_slice="50%")
    held_out = [row for row, _ in result.held_out_examples()]
    assert len(held_out) == 4 and max(held_out) < 20
    assert [row % 4 for row in held_out].count(0) == 1
    with pytest.raises(DataError, match="no column 'subject'"):
        prepared(tmp_path / "other", model, data, stratify_by="subject")


def test_group_by_keeps_the_rows_of_a_value_on_one_side(tmp_path: Path, model: Path) -> None:
    data = write(tmp_path / "train.jsonl", [row | {"document": f"d{at // 5}"} for at, row in enumerate(rows(40))])
    result, _ = prepared(tmp_path / "run", model, data, eval_split=0.25, group_by="document")
    held_out = [row for row, _ in result.held_out_examples()]
    assert len(held_out) == 10 and len({row // 5 for row in held_out}) == 2
    with pytest.raises(DataError, match=r"no column 'subject'.*Set group_by to an existing column"):
        prepared(tmp_path / "other", model, data, group_by="subject")


def test_near_duplicates_stay_on_one_side_of_the_split_and_of_several_files(tmp_path: Path, model: Path) -> None:
    chance = Random(3)
    texts = ["".join(chance.choices("abcdefghij", k=90)) for _ in range(30)]
    first = [{"prompt": text, "completion": "yes"} for text in texts]
    again = [{"prompt": f"{text[:40]}.{text[41:]}", "completion": "yes"} for text in texts]
    files = [{"path": str(write(tmp_path / f"{name}.jsonl", part))} for name, part in (("one", first), ("two", again))]

    def sides(**settings: object) -> tuple[set[int], set[int]]:
        run = tmp_path / f"run{len(settings)}"
        result, _ = prepared(run, model, files, eval_split=0.2, **settings)  # type: ignore[arg-type]
        held_out = {number % 30 for number, _ in result.held_out_examples()}
        assert isinstance(result.train, TokenView)
        return {int(row) % 30 for row in result.train.rows}, held_out

    train, held_out = sides()
    assert not train & held_out and len(held_out) == 6
    train, held_out = sides(group_by=None)
    assert train & held_out
    train, held_out = sides(group_by=None, exclude_leaked_rows=True)
    assert held_out and not train & held_out


def test_rows_of_the_evaluation_data_that_are_near_duplicates_of_training_rows_are_left_out(
    tmp_path: Path, model: Path
) -> None:
    chance = Random(4)
    texts = ["".join(chance.choices("abcdefghij", k=60)) for _ in range(20)]
    train = [{"prompt": text, "completion": "yes"} for text in texts[:15]]
    other = [{"prompt": f"{text[:30]}.{text[31:]}", "completion": "yes"} for text in texts[12:]]
    data, validation = write(tmp_path / "train.jsonl", train), write(tmp_path / "heldout.jsonl", other)

    def held_out(name: str, rows: Path, **settings: object) -> list[int]:
        result, _ = prepared(tmp_path / name, model, data, validation_data=str(rows), **settings)  # type: ignore[arg-type]
        return [number for number, _ in result.held_out_examples()]

    assert held_out("all", validation) == list(range(8))
    assert held_out("left", validation, exclude_leaked_rows=True) == list(range(3, 8))
    leaked = write(tmp_path / "leaked.jsonl", other[:3])
    with pytest.raises(DataError, match=r"no row to evaluate: 3 of 3 held-out rows.*exclude_leaked_rows to false"):
        held_out("none", leaked, exclude_leaked_rows=True)


def test_tokens_come_from_the_supervisor_s_folder(
    home: Path, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = get_settings()
    for name, value in environment(Launch([], {}), "run", settings).items():
        monkeypatch.setenv(name, value)
    data = write(tmp_path / "train.jsonl", rows(20))
    first, _ = prepared(tmp_path / "one", model, data)
    created = {path.name: path.stat().st_ino for path in settings.tokens_dir.glob("*-*/facts.json")}
    again, _ = prepared(tmp_path / "two", model, data)
    assert {path.name: path.stat().st_ino for path in settings.tokens_dir.glob("*-*/facts.json")} == created
    assert not (tmp_path / "one" / "tokens").exists()
    assert isinstance(first.train, TokenView) and isinstance(again.train, TokenView)
    assert first.train.rows.tolist() == again.train.rows.tolist()

"""The samples of a run as records: which steps are kept, and how large they may be."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from training.reports.report import Report
from training.run_folder.events import SampleDrawn, decode, encode
from training.trainer.questions import Question
from training.trainer.sample_records import LONGEST_TEXT, MOST_BYTES, STEP_BYTES, SampleWriter, Scored

LARGE = "x" * 19_000


def drawn(count: int = 4, text: str = "answer", prompt: str = "question") -> tuple[list[Scored], dict[int, float]]:
    question = Question(prompt, "expected", {"number": 1}, 6, "rows.jsonl")
    samples = [
        Scored(
            number, 3, ended=number > 0, scores={"city": 1.0, "json": None}, reward=1.0, question=question, text=text
        )
        for number in range(count)
    ]
    return samples, {number: number / 2 for number in range(count)}


def records(folder: Path) -> list[SampleDrawn]:
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    events = [decode(line) for line in lines]
    assert all(isinstance(event, SampleDrawn) for event in events)
    return events  # type: ignore[return-value]


def writer(folder: Path, *, start: int = 0, total: int = 10, rank: int = 0) -> SampleWriter:
    return SampleWriter(Report(folder, rank), 2, start, total)


def test_a_record_has_what_a_sample_answered_and_what_it_scored(tmp_path: Path) -> None:
    writer(tmp_path).write(0, *drawn())
    first, _, third, _ = records(tmp_path)
    assert vars(first) | {"time": 0} == {
        "time": 0, "step": 0, "sample": 0, "group": 0, "row": 6, "file": "rows.jsonl", "prompt": "question",
        "expected": "expected", "text": "answer", "tokens": 3, "ended": False, "scores": {"city": 1.0, "json": None},
        "reward": 1.0, "advantage": 0.0,
    }  # fmt: skip
    assert (third.sample, third.group, third.ended, third.advantage) == (2, 1, True, 1.0)


def test_only_rank_0_writes_the_samples_of_all_ranks(tmp_path: Path) -> None:
    writer(tmp_path, rank=1).write(1, *drawn())
    assert records(tmp_path) == []


def test_a_long_run_keeps_steps_at_equal_distances_within_the_size(tmp_path: Path) -> None:
    total, kept = 400, writer(tmp_path, total=400)
    for step in range(total + 1):
        kept.write(step, *drawn(50, LARGE))
    steps = sorted({record.step for record in records(tmp_path)})
    size = sum(len(encode(record)) for record in records(tmp_path))
    assert 0.9 * MOST_BYTES < size <= MOST_BYTES
    assert steps[0] == 0 and steps[-1] > 0.95 * total
    distances = [after - before for before, after in pairwise(steps[2:])]
    assert max(distances) - min(distances) <= 1


def test_a_resumed_run_writes_what_its_remaining_steps_add(tmp_path: Path) -> None:
    kept = writer(tmp_path, start=200, total=400)
    for step in range(201, 401):
        kept.write(step, *drawn(50, LARGE))
    size = sum(len(encode(record)) for record in records(tmp_path))
    assert 0.4 * MOST_BYTES < size <= 0.5 * MOST_BYTES


def test_of_a_step_with_too_many_samples_the_first_ones_are_kept(tmp_path: Path) -> None:
    writer(tmp_path).write(1, *drawn(500, LARGE))
    found = records(tmp_path)
    assert [record.sample for record in found] == list(range(len(found)))
    assert 0.9 * STEP_BYTES < sum(len(encode(record)) for record in found) <= STEP_BYTES


@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_of_a_long_text_the_middle_is_left_out_and_a_record_stays_one_that_is_read(
    tmp_path: Path, character: str
) -> None:
    long = f"begin{character * 500_000}end"
    writer(tmp_path).write(1, *drawn(1, long, long))
    (record,) = records(tmp_path)
    assert record.prompt.startswith("begin") and record.prompt.endswith("end")
    assert "(480,008 characters left out)" in record.text and len(record.text) < LONGEST_TEXT + 50
    assert len(encode(record)) < 2**20  # what the supervisor reads at once


def test_a_line_that_a_crash_truncated_is_no_record(tmp_path: Path) -> None:
    writer(tmp_path).write(1, *drawn(2))
    whole, other = (tmp_path / "events.jsonl").read_bytes().splitlines(keepends=True)
    assert decode(whole[:-30]) is None
    rejoined = decode(whole[:-30] + other)
    assert isinstance(rejoined, SampleDrawn) and rejoined.sample == json.loads(other)["sample"] == 1

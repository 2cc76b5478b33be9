"""Programs that run with limits: their results and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from training import limited
from training.limited import Limits
from worker.machine import programs
from worker.machine.programs import ProgramError, run_for_json, run_limited

READER = "tests.programs.hostile_reader"
LIMITS = Limits(2 * 2**30, seconds=300)


@pytest.fixture
def order(tmp_path: Path) -> Any:
    """Writes the file that tells the reader what to do."""

    def write(what: str) -> list[str]:
        path = tmp_path / "order.txt"
        path.write_text(what)
        return [str(path)]

    return write


def test_a_program_returns_its_last_printed_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    limits = Limits(4 * 2**30, seconds=300)
    (row,) = run_for_json(programs.INSPECTION, [str(tmp_path / "rows.jsonl"), "--first", "1"], limits)
    assert row["number"] == 1


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("loop", "it took more than 1 s"),
        ("sleep", "it took more than 1 s"),
        ("memory", "MemoryError"),
        ("fail", "RuntimeError: a mistake of ours"),
        ("nothing", "it printed no answer"),
        ("crash", "exit code -11"),
    ],
)
def test_a_program_without_output_reports_the_reason(order: Any, what: str, reason: str) -> None:
    with pytest.raises(ProgramError) as caught:
        run_for_json(READER, order(what), Limits(LIMITS.memory_bytes, 1) if what in ("loop", "sleep") else LIMITS)
    assert str(caught.value) == reason


@pytest.mark.slow
def test_a_slow_program_is_waited_for_as_long_as_it_does_something(order: Any) -> None:
    assert run_for_json(READER, order("slow"), Limits(LIMITS.memory_bytes, 2)) == 1


def test_a_program_that_reads_late_gets_its_whole_input(order: Any) -> None:
    assert run_for_json(READER, order("late"), LIMITS, text="x" * 2**20) == 2**20


def test_a_program_writes_files_only_up_to_its_limit(order: Any) -> None:
    assert run_limited(READER, order("write"), LIMITS).last_line == "OSError: [Errno 27] File too large"
    assert run_limited(READER, order("write"), Limits(2 * 2**30, 300, file_bytes=2**10)).code == 0


def test_a_program_gets_only_the_named_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LATHE_HUB_TOKEN", "hf_secret")
    assert not {"LATHE_HUB_TOKEN", "HF_TOKEN"} & limited.environment(*programs.HUB).keys()
    assert limited.environment(*programs.HUB_WITH_TOKEN)["HF_TOKEN"] == "hf_secret"

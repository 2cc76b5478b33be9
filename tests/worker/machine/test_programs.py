"""Programs that run with limits: their results and errors."""

import ctypes
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from training import limited
from training.jail import landlock
from training.limited import Limits
from worker.machine import programs
from worker.machine.programs import Program, ProgramError, run_for_json, run_limited

READER = Program("tests.programs.hostile_reader", unconfined="a test reads files of its own")
has_landlock = pytest.mark.skipif(
    sys.platform != "linux" or not landlock.version(ctypes.CDLL(None, use_errno=True)),
    reason="the kernel has no Landlock",
)
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
    file = tmp_path / "rows.jsonl"
    (row,) = run_for_json(programs.INSPECTION, [str(file), "--first", "1"], programs.INSPECTION.limits(file))
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
        ("killed", "its process was killed by SIGKILL"),
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
    assert limited.environment("HF_TOKEN")["HF_TOKEN"] == "hf_secret"


def started_modules() -> set[str]:
    """The modules that are programs: they have a `__main__` block, or are the `__main__` of a package."""
    files = (file for folder in ("training", "worker") for file in (ROOT / folder).rglob("*.py"))
    mains = (file for file in files if '\nif __name__ == "__main__":' in file.read_text())
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for file in mains}


def test_each_program_is_declared_with_its_jail_or_the_reason_why_none_holds_it() -> None:
    modules = [program.module for program in programs.PROGRAMS]
    assert len(modules) == len(set(modules))
    assert {*modules} == started_modules() - {"training.limits"}  # which starts the others
    for program in programs.PROGRAMS:
        confined = program.limits().reads is not None
        assert confined == (not program.unconfined) and (program.memory_bytes or not confined), program.module


def test_a_confined_program_is_not_started_with_limits_that_do_not_confine_it() -> None:
    for program in programs.PROGRAMS:
        if not program.unconfined:
            with pytest.raises(ValueError, match="is confined"):
                run_limited(program, [], LIMITS)


def test_no_module_starts_limited_programs_past_the_list() -> None:
    """The reward process, which confines itself, is the only other one."""
    files = [file for folder in ("training", "worker", "app") for file in (ROOT / folder).rglob("*.py")]
    starting = {file.name for file in files if "start_limited(" in file.read_text()}
    assert starting == {"limited.py", "programs.py", "reward_child.py"}


@has_landlock
@pytest.mark.parametrize(
    "program", [one for one in programs.PROGRAMS if not one.unconfined], ids=lambda program: program.module
)
def test_a_confined_program_reads_no_other_file(program: Program, tmp_path: Path) -> None:
    """Each is tried with a program that reads a file that is none of its own, as code in it would."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "own.txt").write_text("own")
    tried = replace(program, module="tests.programs.reads_a_file", imports_first=False)
    result = run_limited(tried, [str(tmp_path / "secret.txt")], tried.limits(tmp_path / "own.txt"))
    assert result.code and "Permission denied" in result.last_line
    assert run_limited(tried, [str(tmp_path / "own.txt")], tried.limits(tmp_path / "own.txt")).output == b"own"

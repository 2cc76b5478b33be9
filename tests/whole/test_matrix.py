"""benchmarks.matrix: cells that rules decide, cells that run, and the table."""

import argparse
from pathlib import Path

import pytest
import warm

from benchmarks.matrix.command import OTHERS_WITH, Cell, document, run_cells, table, wanted
from training.config.task import Task

INPUTS = {task.value: {"model": "m", "data": "d"} for task in Task}


def asked(**given: list[str] | None) -> argparse.Namespace:
    return argparse.Namespace(
        **{"task": None, "method": None, "strategy": None, "precision": None, "device": "cpu"} | given
    )


def cell(strategy: str, precision: str, outcome: str, reason: str = "") -> Cell:
    return Cell("sft", "lora", strategy, precision, outcome, reason)


def test_rules_decide_cells_before_anything_runs() -> None:
    cells = wanted(asked(task=["sft"], method=["qlora 8bit"], precision=["fp32"]), INPUTS)
    refused = {item.strategy for item in cells if item.outcome == "refused"}
    assert {"zero3", "fsdp"} <= refused and "zero2" not in refused
    assert all(item.reason for item in cells if item.outcome == "refused")


def test_other_methods_of_peft_run_in_each_strategy_with_one_task_and_in_one_process_with_the_rest() -> None:
    cells = wanted(asked(method=["vera"]), INPUTS)
    sft = [item for item in cells if item.task == "sft"]
    rest = [item for item in cells if item.task != "sft"]
    assert {item.strategy for item in sft} == set(OTHERS_WITH)
    assert {item.precision for item in sft} == {"fp32", "bf16"}
    assert {item.task for item in rest} == {task.value for task in Task} - {"sft", "pretraining"}
    assert {(item.strategy, item.precision) for item in rest} == {("single", "fp32")}


def test_the_table_shows_each_precision_if_outcomes_differ() -> None:
    cells = [cell("ddp", "fp32", "worked"), cell("ddp", "bf16", "worked")]
    cells += [cell("zero2", "fp32", "worked"), cell("zero2", "bf16", "refused", "no bf16")]
    last = table(cells).splitlines()[-1]
    assert last == "| sft | lora | yes | fp32 yes, bf16 - |"
    assert "4 cells: 3 work, a rule refuses 1 (-), 0 crash." in document(cells)
    assert "| no bf16 | 1 |" in document(cells)


def test_cells_that_worked_are_not_run_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("sft · lora · ddp · fp32\n", encoding="utf-8")
    (result,) = run_cells([Cell("sft", "lora", "ddp", "fp32")], tmp_path, log)
    assert result.outcome == "worked"


@pytest.mark.train
def test_a_crashed_cell_reports_its_error_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.use_python(monkeypatch)
    from benchmarks.matrix.command import make_inputs

    bad, good = wanted(asked(task=["sft"], method=["lora"], strategy=["single"]), make_inputs(tmp_path))
    bad.config["data"] = str(tmp_path / "nothing.jsonl")
    run_cells([bad, good], tmp_path)
    assert (bad.outcome, good.outcome) == ("crashed", "worked")
    assert "FileNotFoundError" in bad.reason

"""benchmarks/reference/command.py: its cells, its measures of difference, and some real cells."""

import ast
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import warm
from paths import ROOT
from patience import run

from benchmarks.reference.cells import GLOBAL_BATCH, cells
from benchmarks.reference.command import LIMITS, Finding, compare, summary
from benchmarks.reference.inputs import make_inputs
from benchmarks.reference.random_cells import NAMED_MODULES, random_cells
from benchmarks.reference.rows import IGNORED, rows_of
from benchmarks.reference.samples import Sample, SampleLearner
from training.config.choices import Strategy
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.config.task import Task
from training.rules import check

CELLS = cells(Path("inputs"))
TRIED = (
    "^sft packed, 4x2x1|chats with thinking, 1x8x1|mixture flat, 4x2x1|dpo, 2x4x1|"
    "seq2seq t5, 4x1x2, ddp|classification, 4x1x2, ddp"
)


def good(**figures: float) -> Finding:
    return Finding("cell", **(dict.fromkeys(LIMITS, 0.0) | figures))


def test_the_cells_cover_every_task_and_strategy_with_the_same_global_batch() -> None:
    assert len(CELLS) >= 120 and len({cell.name for cell in CELLS}) == len(CELLS)
    assert {cell.config["task"] for cell in CELLS} == {task.value for task in Task}
    assert {cell.strategy for cell in CELLS} == {name.value for name in Strategy}
    assert all(cell.split[0] * cell.split[1] * cell.split[2] == GLOBAL_BATCH for cell in CELLS)


def test_no_rule_refuses_a_cell() -> None:
    refused = {
        cell.name: conflict.reason
        for cell in CELLS
        for conflict in check(RunConfig.model_validate(cell.config), Machine())
        if conflict.blocking
    }
    assert not refused


@pytest.mark.parametrize("name", ["plain_loop", "rows", "samples", "distillation", "trl"])
def test_the_reference_does_not_import_the_training_program(name: str) -> None:
    tree = ast.parse((ROOT / "benchmarks" / "reference" / f"{name}.py").read_text(encoding="utf-8"))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [module for module in imported if module.split(".")[0] in ("training", "worker", "app")]


def test_only_answers_and_their_end_tokens_carry_loss_in_every_turn(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    make_inputs(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "llama")
    turns = [("user", "2+2?"), ("assistant", "4"), ("user", "3+3?"), ("assistant", "6")]
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}) + "\n")
    (row,) = rows_of("sft", file, tokenizer, 100)
    learned = [token for token, label in zip(row.ids, row.labels, strict=True) if label != IGNORED]
    assert tokenizer.decode(learned) == "4<|end|>6<|end|>"


@pytest.mark.parametrize(
    ("figure", "size"),
    [("loss", 2e-6), ("gradient", 2e-4), ("evaluation", 2e-6), ("weights", 2e-4), ("reloaded", 2e-6)],
)
def test_a_figure_beyond_its_limit_is_a_disagreement(figure: str, size: float) -> None:
    assert good().agrees and not good(**{figure: size}).agrees


def test_a_cell_that_crashed_counts_as_tried_and_not_as_agreed() -> None:
    figures = summary([good(loss=1e-7), Finding("other", reason="a rank ended")])
    assert (figures["tried"], figures["agreed"], figures["worst_loss"]) == (2, 1, 1e-7)
    assert figures["disagreed"][0]["reason"] == "a rank ended"


def test_nan_is_an_infinite_difference() -> None:
    from benchmarks.reference.run import _largest

    assert _largest([1.0, float("nan")], [1.0, 1.0]) == float("inf")
    assert _largest([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)


def test_the_difference_of_saved_weights_is_relative_to_their_change_in_training() -> None:
    from benchmarks.reference.run import MismatchError, _distance

    before, expected = {"a": torch.zeros(2)}, {"a": torch.tensor([3.0, 4.0])}
    assert _distance({"a": torch.tensor([3.0, 4.5])}, expected, before) == pytest.approx(0.1)
    with pytest.raises(MismatchError, match="saved other weights: b"):
        _distance(expected | {"b": torch.zeros(1)}, expected, before)


def test_rows_unknown_to_the_reference_are_a_mismatch(tmp_path: Path) -> None:
    from benchmarks.reference.steps import MismatchError, read_steps

    (cell,) = [cell for cell in CELLS if cell.name.startswith("sft padded, 8x1x1")]
    batches = tmp_path / "batches-0.jsonl"
    batches.write_text(json.dumps({"process": 1, "step": 1, "rows": [[5, 6], [7]]}) + "\n")
    assert read_steps(tmp_path, cell, [[7], [5, 6]]) == [[[[1, 0]]]]
    with pytest.raises(MismatchError, match="other tokens"):
        read_steps(tmp_path, cell, [[7], [5, 9]])


def test_a_row_that_trains_twice_in_an_epoch_is_a_mismatch(tmp_path: Path) -> None:
    from benchmarks.reference.steps import MismatchError, read_steps

    (cell,) = [cell for cell in CELLS if cell.name.startswith("sft padded, 8x1x1")]
    lines = [{"process": 1, "step": step, "rows": [[5, 6], [7]]} for step in (1, 2)]
    (tmp_path / "batches-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_steps(tmp_path, cell, [[7], [5, 6]]) == [[[[1, 0]]], [[[1, 0]]]]  # two epochs
    with pytest.raises(MismatchError, match="2 of 3 rows"):
        read_steps(tmp_path, cell, [[7], [5, 6], [8]])


def test_a_rank_without_rows_at_the_end_of_an_epoch_does_not_count(tmp_path: Path) -> None:
    from benchmarks.reference.steps import read_steps

    cell = next(cell for cell in CELLS if cell.name.startswith("sft padded, 4x1x2"))
    for rank, rows in enumerate(([[5], [6]], [[5]])):
        (tmp_path / f"batches-{rank}.jsonl").write_text(json.dumps({"process": 1, "step": 1, "rows": rows}) + "\n")
    assert read_steps(tmp_path, cell, [[5], [6]]) == [[[[0, 1], []]]]


def test_of_a_step_that_was_taken_again_after_a_kill_the_last_rows_count(tmp_path: Path) -> None:
    from benchmarks.reference.steps import read_steps

    cell = next(cell for cell in CELLS if cell.name.startswith("sft padded, 8x1x1"))
    taken = [(1, 1, [[5], [6]]), (1, 2, [[7], [8]]), (2, 2, [[8], [7]])]
    lines = [{"process": process, "step": step, "rows": rows} for process, step, rows in taken]
    (tmp_path / "batches-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_steps(tmp_path, cell, [[5], [6], [7], [8]]) == [[[[0, 1]]], [[[3, 2]]]]


def test_random_cells_are_those_of_their_seed_and_no_rule_refuses_them(tmp_path: Path) -> None:
    drawn = random_cells(30, tmp_path, 7)
    assert [cell.name for cell in drawn] == [cell.name for cell in random_cells(30, tmp_path, 7)]
    assert len({cell.name for cell in drawn}) == 30
    assert {cell.killed_at > 0 for cell in drawn} == {True, False}


def test_random_cells_combine_what_embeddings_and_head_train_with_strategies_streams_weights_and_noise() -> None:
    drawn = random_cells(300, Path("inputs"), 7)
    named = {(Path(cell.config["model"]).name, cell.method) for cell in drawn}
    assert named >= {("tied", method) for method in NAMED_MODULES}
    assert {cell.strategy for cell in drawn if cell.method in NAMED_MODULES} >= {"single", "ddp", "zero3", "fsdp"}
    streamed = [cell for cell in drawn if cell.config["streaming"]]
    assert {cell.ranks for cell in streamed} == {1, 2}
    assert {Path(cell.config["data"]).name.partition("-")[0] for cell in streamed} >= {"gaps", "weighted"}
    assert any(cell.config["neftune_noise_alpha"] for cell in drawn)


def test_a_stream_begins_an_epoch_within_a_step_and_trains_on_each_row_once_before(tmp_path: Path) -> None:
    from benchmarks.reference.steps import MismatchError, read_steps

    cell = next(cell for cell in CELLS if cell.name.startswith("sft padded, 8x1x1"))
    streamed = replace(cell, config=cell.config | {"streaming": True})
    batches = tmp_path / "batches-0.jsonl"

    def trained(*steps: list[list[int]]) -> None:
        lines = [{"process": 1, "step": step, "rows": rows} for step, rows in enumerate(steps, start=1)]
        batches.write_text("".join(json.dumps(line) + "\n" for line in lines))

    trained([[5], [6]], [[7], [5]])
    assert read_steps(tmp_path, streamed, [[5], [6], [7]]) == [[[[0, 1]]], [[[2, 0]]]]
    trained([[5], [6]], [[5], [7]])
    with pytest.raises(MismatchError, match="2 of 3 rows"):
        read_steps(tmp_path, streamed, [[5], [6], [7]])


def test_cells_that_agreed_in_the_log_are_not_run_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(json.dumps(good().__dict__ | {"cell": CELLS[0].name}) + "\n")
    (finding,) = compare(CELLS[:1], tmp_path, log)
    assert finding.agrees


@pytest.mark.train
@pytest.mark.filterwarnings("ignore")  # of trl
def test_runs_on_one_and_two_ranks_agree_with_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm.use_python(monkeypatch)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    findings = compare([cell for cell in cells(tmp_path) if re.search(TRIED, cell.name)], tmp_path)
    assert len(findings) == TRIED.count("|") + 1
    assert [finding for finding in findings if not finding.agrees] == []


@pytest.mark.train
@pytest.mark.filterwarnings("ignore")  # of trl
def test_a_run_on_samples_agrees_with_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without forks, whose memory is beyond the limit of the process that scores."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    (finding,) = compare([cell for cell in cells(tmp_path) if cell.name.startswith("grpo iterated, 1x8x1")], tmp_path)
    assert finding.agrees, finding


def test_a_token_that_the_numbers_of_a_sample_do_not_select_is_a_fault() -> None:
    class Uniform(torch.nn.Module):
        """Gives each of ten tokens the same probability."""

        def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 10))

    settings = {"seed": 3, "max_completion_length": 4, "num_generations": 2}
    learner = SampleLearner(Uniform(), [], [], settings, SimpleNamespace(eos_token_id=99))
    drawn = [int(10 * number) for number in np.random.Generator(np.random.PCG64([3, 0, 5, 11])).random(4)]
    assert learner.is_drawn(Sample(5, [1, 2], drawn))
    assert not learner.is_drawn(Sample(4, [1, 2], drawn))
    assert not learner.is_drawn(Sample(5, [1, 2], drawn[:3]))
    assert not learner.is_drawn(Sample(5, [1, 2], [*drawn[:3], (drawn[3] + 1) % 10]))


@pytest.mark.nightly
@pytest.mark.train
@pytest.mark.filterwarnings("ignore")  # of PEFT
def test_dora_under_zero_3_whose_layers_are_computed_again_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.use_python(monkeypatch)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    (cell,) = (cell for cell in cells(tmp_path) if cell.name.startswith("chats flat, 4x1x2, zero3, lora"))
    settings = {"use_dora": True, "gradient_checkpointing": "full", "packing": "none", "sequence_parallel_size": 2}
    config = cell.config | settings | {"micro_batch_size": 4, "num_processes": 4, "save_steps": 1}
    killed = replace(cell, split=(4, 1, 4), config=config, killed_at=4)
    (finding,) = compare([killed], tmp_path)
    assert finding.agrees, finding


@pytest.mark.nightly
@pytest.mark.train
def test_the_command_prints_the_comparison_and_succeeds_if_all_cells_agree() -> None:
    command = [sys.executable, "-m", "benchmarks.reference", "--json", "--only", TRIED]
    done = run(command, cwd=ROOT, text=True)
    figures = json.loads(done.stdout)
    assert figures["disagreed"] == [], done.stderr[-2000:]
    assert figures["tried"] == figures["agreed"] == TRIED.count("|") + 1
    assert done.returncode == 0

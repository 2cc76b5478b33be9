"""Runs every task with every method, strategy and precision for two steps on tiny models; each works or is refused by a rule.

`python -m benchmarks.matrix [--task dpo ...] [--method lora ...] [--strategy zero3 ...] [--precision bf16 ...] [--device cuda]
[--write] [--json]`

Each cell is a complete run of the training program on CPU: tokens, model, two steps, an evaluation, a checkpoint and the result.
Distributed cells have two ranks; with `--device cuda` all have one, on the first GPU. A group of ranks runs many cells
(benchmarks/matrix/ranks.py), since imports take far longer than two steps; it is replaced if it crashes or hangs. `--write` writes
the table to docs/matrix.md.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol

from training.config.choices import Method, Strategy
from training.config.machine import Machine
from training.config.name_values import written
from training.config.peft_methods import REQUIRED
from training.config.run_config import RunConfig
from training.config.task import Task
from training.rules import check
from worker.supervision.launcher import launch

ROOT = Path(__file__).parents[2]
SECONDS = 600  # time limit of a cell
STRATEGIES: dict[str, dict[str, Any]] = {
    **{name.value: {"strategy": name.value} for name in Strategy},
    "zero2 + optimizer offload": {"strategy": "zero2", "offload_optimizer": "cpu"},
    "zero3 + offload": {"strategy": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"},
    "fsdp + offload": {"strategy": "fsdp", "offload_param": "cpu"},
}
METHODS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "qlora 4bit": {"method": "qlora", "quantization": "4bit"},
    "qlora 8bit": {"method": "qlora", "quantization": "8bit"},
    "ia3": {"method": "ia3"},
}
# The settings that save memory at the same loss, each with the tasks that have it.
LESS_MEMORY: dict[str, dict[str, Any]] = {
    "full, chunked loss": {"method": "full", "chunked_loss": "on"},
    "lora, chunked loss": {"method": "lora", "chunked_loss": "on"},
    "qlora 4bit, chunked loss": {"method": "qlora", "quantization": "4bit", "chunked_loss": "on"},
    "full, optimizer in backward": {"method": "full", "optimizer_in_backward": True, "max_grad_norm": 0},
    "full, offloaded activations": {"method": "full", "offload_activations": True},
}
CHUNKED_TASKS = [task.value for task in Task if task.traits.chunks_loss]
# PEFT's other methods run with one task in each strategy, and with the other tasks in one process in fp32.
OTHERS = {
    name.value: {"method": name.value, "method_options": written(REQUIRED[name]) or None}
    for name in Method
    if name.value not in (*METHODS, "qlora")
}
OTHERS["c3a"]["method_options"] = "block_size=16"  # divides the tiny model's widths
OTHERS["vblora"]["method_options"] = "vector_length=16"
OTHERS_WITH = ("single", "ddp", "zero2", "zero3", "fsdp")
BASE = {"max_steps": 2, "eval_split": 8, "eval_steps": 2, "save_steps": 2, "micro_batch_size": 2, "max_length": 64}


SAMPLES: dict[Task, dict[str, Any]] = {
    Task.GRPO: {"rewards": "contains", "num_generations": 2, "max_completion_length": 8, "baseline_prompts": 0},
    Task.DISTILL: {"max_completion_length": 8},
}


@dataclass
class Cell:
    """One combination and its outcome: `worked`, `refused` (by a rule, with its reason) or `crashed`."""

    task: str
    method: str
    strategy: str
    precision: str
    outcome: str = ""
    reason: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.task, self.method, self.strategy, self.precision

    @property
    def ranks(self) -> int:
        return 1 if self.strategy == "single" or self.device == "cuda" else 2


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.matrix", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--task", action="append", choices=[task.value for task in Task])
    parser.add_argument("--method", action="append", choices=[*METHODS, *LESS_MEMORY, *OTHERS])
    parser.add_argument("--strategy", action="append", choices=list(STRATEGIES))
    parser.add_argument("--precision", action="append", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--write", action="store_true", help="write docs/matrix.md")
    parser.add_argument("--log", type=Path, metavar="FILE", help="record cells that worked, and skip those recorded")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lathe-matrix-") as home:
        cells = run_cells(wanted(arguments, make_inputs(Path(home))), Path(home), arguments.log)
    counts = Counter(cell.outcome for cell in cells)
    if arguments.write:
        (ROOT / "docs" / "matrix.md").write_text(document(cells), encoding="utf-8")
    if arguments.json:
        print(json.dumps(figures(cells), indent=1))
    else:
        print(table(cells))
        print(
            f"{len(cells)} cells: {counts['worked']} worked, {counts['refused']} refused by a rule, {counts['crashed']} crashed"
        )
    sys.exit(bool(counts["crashed"]))


def figures(cells: list[Cell]) -> dict[str, Any]:
    """Returns the counts of all outcomes, and the crashed cells."""
    counts = Counter(cell.outcome for cell in cells)
    names = ("task", "method", "strategy", "precision", "reason")
    crashes = [dict(zip(names, (*cell.key, cell.reason), strict=True)) for cell in cells if cell.outcome == "crashed"]
    outcomes = {name: counts[name] for name in ("worked", "refused", "crashed")}
    return {"cells": len(cells), **outcomes, "crashes": crashes}


def wanted(arguments: argparse.Namespace, inputs: dict[str, dict[str, str]]) -> list[Cell]:
    """Returns the selected cells; those that a rule refuses have the outcome `refused`."""
    tasks = arguments.task or [task.value for task in Task]
    precisions = arguments.precision or ["fp32", "bf16"]
    strategies = arguments.strategy or list(STRATEGIES)
    methods = [name for name in METHODS if name in (arguments.method or METHODS)]
    usual = product(tasks, methods, strategies, precisions)
    frugal = [name for name in LESS_MEMORY if name in (arguments.method or LESS_MEMORY)]
    chunked = product([task for task in tasks if task in CHUNKED_TASKS], frugal, strategies, precisions[:1])
    others = [name for name in OTHERS if name in (arguments.method or OTHERS)]
    sft = [task for task in tasks if task == "sft"]
    more = product(sft, others, [name for name in strategies if name in OTHERS_WITH], precisions)
    rest = [task for task in tasks if task not in ("sft", "pretraining")]
    alone = product(rest, others, [name for name in strategies if name == "single"], precisions[:1])
    cells = []
    for task, method, strategy, precision in (*usual, *chunked, *more, *alone):
        cell = Cell(task, method, strategy, precision, device=arguments.device)
        cell.config = BASE | (METHODS | LESS_MEMORY | OTHERS)[method] | STRATEGIES[strategy] | inputs[cell.task]
        cell.config |= SAMPLES.get(Task(cell.task), {})
        cell.config |= {"teacher": cell.config["model"]} if cell.task == Task.DISTILL else {}
        cell.config |= {"task": cell.task, "precision": cell.precision, "num_processes": cell.ranks}
        conflicts = check(RunConfig.model_validate(cell.config), Machine(cell.device))
        conflict = next((conflict for conflict in conflicts if conflict.blocking), None)
        if conflict:
            cell.outcome, cell.reason = "refused", conflict.reason
        cells.append(cell)
    return cells


def run_cells(cells: list[Cell], home: Path, log: Path | None = None) -> list[Cell]:
    """Runs the cells that have no outcome and are not in `log`, sorted by kind of ranks."""
    worked = set(log.read_text(encoding="utf-8").splitlines()) if log and log.exists() else set()
    for cell in cells:
        if not cell.outcome and " · ".join(cell.key) in worked:
            cell.outcome = "worked"
    waiting = sorted((cell for cell in cells if not cell.outcome), key=lambda cell: (cell.ranks, cell.strategy))
    ranks: Ranks | None = None
    for number, cell in enumerate(waiting):
        if ranks is None or ranks.kind != (cell.ranks, cell.strategy):
            if ranks:
                ranks.end()
            ranks = Ranks(cell, home / f"ranks-{number}", device=cell.device)
        cell.outcome, cell.reason = ranks.run(cell, home / f"run-{number}")
        print(
            f"{number + 1}/{len(waiting)} {' · '.join(cell.key)}: {cell.outcome} {cell.reason}",
            file=sys.stderr,
            flush=True,
        )
        if cell.outcome == "crashed":
            ranks.end()
            ranks = None
        elif log:
            with log.open("a", encoding="utf-8") as known:
                known.write(" · ".join(cell.key) + "\n")
    if ranks:
        ranks.end()
    return cells


class Runs(Protocol):
    """The members of a cell that `Ranks` uses."""

    @property
    def ranks(self) -> int: ...

    @property
    def strategy(self) -> str: ...

    @property
    def config(self) -> dict[str, Any]: ...


class Ranks:
    """A group of processes that run cells one after another, started as the launcher would start the first cell.

    `program` is the module that each process runs.
    """

    def __init__(self, cell: Runs, folder: Path, program: str = "benchmarks.matrix.ranks", device: str = "cpu") -> None:
        self.kind = (cell.ranks, cell.strategy)
        folder.mkdir()
        self._log = (folder / "output.log").open("wb")
        leased = "here/cuda:0" if device == "cuda" else "here/cpu"
        env = os.environ | launch(RunConfig.model_validate(cell.config), folder, [leased]).env
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        env |= {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", program]
        self._processes = [
            subprocess.Popen(command, env=env | _place(cell, rank, device), stdin=subprocess.PIPE, stdout=self._log,
                             stderr=subprocess.STDOUT, cwd=folder)
            for rank in range(cell.ranks)
        ]  # fmt: skip

    def run(self, cell: Runs, folder: Path) -> tuple[str, str]:
        """Runs a cell and returns its outcome and reason. In a folder with a checkpoint it resumes from that."""
        folder.mkdir(exist_ok=True)
        for rank in range(cell.ranks):
            (folder / f"outcome-{rank}").unlink(missing_ok=True)
        (folder / "config.json").write_text(RunConfig.model_validate(cell.config).model_dump_json())
        port = _free_port()
        for process in self._processes:
            if process.stdin:
                process.stdin.write(f"{port} {folder}\n".encode())
                process.stdin.flush()
        files = [folder / f"outcome-{rank}" for rank in range(cell.ranks)]
        events, reported, deadline = folder / "events.jsonl", 0, time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if (size := events.stat().st_size if events.exists() else 0) != reported:
                reported, deadline = size, time.monotonic() + SECONDS  # on a busy machine a run is slow, and not hung
            outcomes = [path.read_text() for path in files if path.exists()]
            failed = next((outcome for outcome in outcomes if outcome and outcome != "worked"), None)
            if failed:
                return "crashed", failed
            if len(outcomes) == cell.ranks and all(outcomes):
                return "worked", ""
            if any(process.poll() is not None for process in self._processes):
                return "crashed", "a rank ended"
            time.sleep(0.02)
        return "crashed", f"hung: nothing new for {SECONDS} s"

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()
        self._log.close()


def _place(cell: Runs, rank: int, device: str = "cpu") -> dict[str, str]:
    """Returns the environment that accelerate's launcher sets for a rank; empty for a process without a group."""
    if cell.ranks == 1 and (device == "cpu" or cell.strategy == "single"):
        return {}
    env = {
        "WORLD_SIZE": str(cell.ranks),
        "LOCAL_WORLD_SIZE": str(cell.ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    if cell.strategy.startswith("fsdp"):
        offload = str("offload" in cell.strategy).lower()
        env |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": offload}
    if device == "cuda" and cell.strategy.startswith("zero"):  # on CPU training/ranks/distributed.py does without
        env["ACCELERATE_USE_DEEPSPEED"] = "true"
    return env | {"MASTER_ADDR": "127.0.0.1"}


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def make_inputs(home: Path) -> dict[str, dict[str, str]]:
    """Makes a tiny model and a small data set for each task. Returns their paths by task."""
    from benchmarks.matrix.inputs import make_data, make_models

    causal, seq2seq = make_models(home)
    data = make_data(home)
    return {
        task.value: {"model": str(seq2seq if task is Task.SEQ2SEQ else causal), "data": str(data[task])}
        for task in Task
    }


def table(cells: list[Cell]) -> str:
    """Returns a table with a line per task and method and a column per strategy."""
    strategies = list(dict.fromkeys(cell.strategy for cell in cells))
    rows: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        rows.setdefault((cell.task, cell.method), {}).setdefault(cell.strategy, []).append(cell)
    lines = [f"| task | method | {' | '.join(strategies)} |", f"| --- | --- |{' --- |' * len(strategies)}"]
    for (task, method), by_strategy in rows.items():
        columns = " | ".join(_outcome(by_strategy.get(strategy, [])) for strategy in strategies)
        lines.append(f"| {task} | {method} | {columns} |")
    return "\n".join(lines)


def _outcome(cells: list[Cell]) -> str:
    """Returns the outcome of all precisions, in one word if they agree."""
    words = {"worked": "yes", "refused": "-", "crashed": "CRASH"}
    if len({cell.outcome for cell in cells}) <= 1:
        return "".join(words[cell.outcome] for cell in cells[:1])
    return ", ".join(f"{cell.precision} {words[cell.outcome]}" for cell in cells)


def document(cells: list[Cell]) -> str:
    """Returns docs/matrix.md: the table, and the reasons of the rules."""
    counts = Counter(cell.outcome for cell in cells)
    precisions = " and ".join(dict.fromkeys(cell.precision for cell in cells))
    reasons: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.outcome == "refused":
            reasons.setdefault(cell.reason, []).append(cell)
    lines = [
        "# Supported combinations",
        "",
        "`python -m benchmarks.matrix --write` writes this page. Every cell is a run of two steps on a tiny model, on CPU, with",
        f"two ranks for distributed strategies: tokens, training, evaluation, checkpoint and result, in {precisions}.",
        f"{len(cells):,} cells: {counts['worked']:,} work, a rule refuses {counts['refused']:,} (-), "
        f"{counts['crashed']:,} crash.",
        "",
        table(cells),
        "",
        "## Refused combinations",
        "",
        "| reason | cells |",
        "| --- | --- |",
        *(f"| {reason} | {len(refused):,} |" for reason, refused in sorted(reasons.items())),
    ]
    return "\n".join(lines) + "\n"

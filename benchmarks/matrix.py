"""Every task with every method, strategy and precision, really run for two steps on tiny models: it works, or a rule refuses it.

`python -m benchmarks.matrix [--task dpo ...] [--method lora ...] [--strategy zero3 ...] [--precision bf16 ...] [--write] [--json]`

Each cell is a whole run of the training program: tokens, model, two steps, an evaluation, a checkpoint and the result. Cells
that need several ranks have two, on CPU. Ranks take cell after cell (benchmarks/matrix_ranks.py), since importing takes far
longer than two steps; one that crashes or hangs is replaced before the next. `--write` puts the table into docs/matrix.md.
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
from typing import Any, Protocol

from training.config import Method, RunConfig, Strategy, Task
from training.methods import REQUIRED, written
from training.rules import Machine, check
from worker.launcher import launch

ROOT = Path(__file__).parents[1]
SECONDS = 600  # after which a cell counts as hanging
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
# PEFT's other methods are tried where they could make a difference: with one task, in one precision.
OTHERS = {
    name.value: {"method": name.value, "method_options": written(REQUIRED.get(name.value, {})) or None}
    for name in Method
    if name.value not in (*METHODS, "qlora")
}
OTHERS["c3a"]["method_options"] = "block_size=16"  # which divides the tiny model's widths
OTHERS["vblora"]["method_options"] = "vector_length=16"
OTHERS_WITH = ("single", "ddp", "zero2", "zero3", "fsdp")
BASE = {"max_steps": 2, "eval_split": 8, "eval_steps": 2, "save_steps": 2, "micro_batch_size": 2, "max_length": 64}


@dataclass
class Cell:
    """One combination and what came of it: `worked`, `refused` (by a rule, with its reason) or `crashed`."""

    task: str
    method: str
    strategy: str
    precision: str
    outcome: str = ""
    reason: str = ""
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.task, self.method, self.strategy, self.precision

    @property
    def ranks(self) -> int:
        return 1 if self.strategy == "single" else 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--task", action="append", choices=[task.value for task in Task])
    parser.add_argument("--method", action="append", choices=[*METHODS, *OTHERS])
    parser.add_argument("--strategy", action="append", choices=list(STRATEGIES))
    parser.add_argument("--precision", action="append", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--write", action="store_true", help="write docs/matrix.md")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="keep what worked there, and go on from it when run again"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lathe-matrix-") as home:
        cells = run_cells(wanted(given, make_inputs(Path(home))), Path(home), given.log)
    counts = Counter(cell.outcome for cell in cells)
    if given.write:
        (ROOT / "docs" / "matrix.md").write_text(document(cells), encoding="utf-8")
    if given.json:
        crashed = [
            dict(zip(("task", "method", "strategy", "precision", "reason"), (*cell.key, cell.reason), strict=True))
            for cell in cells
            if cell.outcome == "crashed"
        ]
        print(
            json.dumps(
                {
                    "cells": len(cells),
                    "worked": counts["worked"],
                    "refused": counts["refused"],
                    "crashed": counts["crashed"],
                    "crashes": crashed,
                },
                indent=1,
            )
        )
    else:
        print(table(cells))
        print(
            f"{len(cells)} cells: {counts['worked']} worked, {counts['refused']} refused by a rule, {counts['crashed']} crashed"
        )
    sys.exit(bool(counts["crashed"]))


def wanted(given: argparse.Namespace, inputs: dict[str, dict[str, str]]) -> list[Cell]:
    """The cells asked for, those that rules refuse decided already."""
    tasks = given.task or [task.value for task in Task]
    precisions = given.precision or ["fp32", "bf16"]
    strategies = given.strategy or list(STRATEGIES)
    usual = product(tasks, [name for name in METHODS if name in (given.method or METHODS)], strategies, precisions)
    others = [name for name in OTHERS if name in (given.method or OTHERS)] if "sft" in tasks else []
    more = product(["sft"], others, [name for name in strategies if name in OTHERS_WITH], precisions[:1])
    cells = []
    for task, method, strategy, precision in (*usual, *more):
        cell = Cell(task, method, strategy, precision)
        cell.config = BASE | (METHODS | OTHERS)[method] | STRATEGIES[strategy] | inputs[cell.task]
        cell.config |= {"task": cell.task, "precision": cell.precision, "num_processes": cell.ranks}
        conflict = next((one for one in check(RunConfig.model_validate(cell.config), Machine()) if one.blocking), None)
        if conflict:
            cell.outcome, cell.reason = "refused", conflict.reason
        cells.append(cell)
    return cells


def run_cells(cells: list[Cell], home: Path, log: Path | None = None) -> list[Cell]:
    """Runs what no rule refuses and `log` does not know to work; cells of the same kind of ranks one after another."""
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
            ranks = Ranks(cell, home / f"ranks-{number}")
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
    """What ranks must know of a cell."""

    @property
    def ranks(self) -> int: ...

    @property
    def strategy(self) -> str: ...

    @property
    def config(self) -> dict[str, Any]: ...


class Ranks:
    """Processes that run cells one after another, as the launcher would start them for the first of those.

    `program` is the module that each of them runs.
    """

    def __init__(self, cell: Runs, folder: Path, program: str = "benchmarks.matrix_ranks") -> None:
        self.kind = (cell.ranks, cell.strategy)
        folder.mkdir()
        self._log = (folder / "output.log").open("wb")
        env = os.environ | launch(RunConfig.model_validate(cell.config), folder, ["here/cpu"]).env
        env |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", program]
        self._processes = [
            subprocess.Popen(command, env=env | _place(cell, rank), stdin=subprocess.PIPE, stdout=self._log,
                             stderr=subprocess.STDOUT, cwd=folder)
            for rank in range(cell.ranks)
        ]  # fmt: skip

    def run(self, cell: Runs, folder: Path) -> tuple[str, str]:
        """What came of a cell, and why; one run again in its folder goes on from its checkpoint."""
        folder.mkdir(exist_ok=True)
        for rank in range(cell.ranks):
            (folder / f"outcome-{rank}").unlink(missing_ok=True)
        (folder / "config.json").write_text(RunConfig.model_validate(cell.config).model_dump_json())
        port = _free_port()
        for process in self._processes:
            if process.stdin:
                process.stdin.write(f"{port} {folder}\n".encode())
                process.stdin.flush()
        deadline = time.monotonic() + SECONDS
        said = [folder / f"outcome-{rank}" for rank in range(cell.ranks)]
        while time.monotonic() < deadline:
            words = [path.read_text() for path in said if path.exists()]
            failed = next((word for word in words if word and word != "worked"), None)
            if failed:
                return "crashed", failed
            if len(words) == cell.ranks and all(words):
                return "worked", ""
            if any(process.poll() is not None for process in self._processes):
                return "crashed", "a rank ended"
            time.sleep(0.02)
        return "crashed", f"hung for {SECONDS} s"

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()
        self._log.close()


def _place(cell: Runs, rank: int) -> dict[str, str]:
    """What accelerate's launcher tells a rank; one process alone is told nothing."""
    if cell.ranks == 1:
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
    return env | {"MASTER_ADDR": "127.0.0.1"}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make_inputs(home: Path) -> dict[str, dict[str, str]]:
    """A tiny model and a small data set for each task."""
    from benchmarks.matrix_inputs import make_data, make_models

    causal, seq2seq = make_models(home)
    data = make_data(home)
    return {
        task.value: {"model": str(seq2seq if task is Task.SEQ2SEQ else causal), "data": str(data[task])}
        for task in Task
    }


def table(cells: list[Cell]) -> str:
    """One line a task and method, one column a strategy: what each precision came to."""
    strategies = list(dict.fromkeys(cell.strategy for cell in cells))
    rows: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        rows.setdefault((cell.task, cell.method), {}).setdefault(cell.strategy, []).append(cell)
    lines = [f"| task | method | {' | '.join(strategies)} |", f"| --- | --- |{' --- |' * len(strategies)}"]
    for (task, method), found in rows.items():
        lines.append(
            f"| {task} | {method} | {' | '.join(_words(found.get(strategy, [])) for strategy in strategies)} |"
        )
    return "\n".join(lines)


def _words(cells: list[Cell]) -> str:
    words = {"worked": "yes", "refused": "-", "crashed": "CRASH"}
    if len({cell.outcome for cell in cells}) <= 1:
        return "".join(words[cell.outcome] for cell in cells[:1])
    return ", ".join(f"{cell.precision} {words[cell.outcome]}" for cell in cells)


def document(cells: list[Cell]) -> str:
    """docs/matrix.md: the table, and below it what rules refuse and why."""
    counts = Counter(cell.outcome for cell in cells)
    precisions = " and ".join(dict.fromkeys(cell.precision for cell in cells))
    reasons: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.outcome == "refused":
            reasons.setdefault(cell.reason, []).append(cell)
    lines = [
        "# What goes together",
        "",
        "`python -m benchmarks.matrix --write` makes this page. Every cell is a run of two steps on a tiny model, on CPU, with two",
        f"ranks where there are several: tokens, training, evaluation, checkpoint and result, in {precisions}.",
        f"{len(cells):,} cells: {counts['worked']:,} worked, {counts['refused']:,} are refused by a rule (-), "
        f"{counts['crashed']:,} crashed.",
        "",
        table(cells),
        "",
        "## What is refused",
        "",
        "| reason | cells |",
        "| --- | --- |",
        *(f"| {reason} | {len(refused):,} |" for reason, refused in sorted(reasons.items())),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

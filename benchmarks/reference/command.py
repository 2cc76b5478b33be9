"""Compares real runs with plain loops: the same rows in the same order must give the same loss, gradient norms and weights.

`python -m benchmarks.reference [--random N] [--only PATTERN] [--limit N] [--seed N] [--log FILE] [--json]`

Each cell (cells.py) is a complete run of the training program in fp32 on tiny models, on CPU, with one or two ranks.
The reference is an independent loop (plain_loop.py, samples.py; for preferences trl's trainers in trl.py), which imports
nothing from training/ and makes its own tokens, labels and samples. It takes from the run only the order of the rows, which it
looks up by their tokens, and the randomly initialized weights.

It compares, as relative differences, the loss and the gradient norm before clipping of every step, the evaluation loss after
the last step, and the saved weights: their distance from the loop's, divided by the distance that training moved the loop's.
It also checks that no row trains twice before all rows have trained once, and that plain transformers and peft load what was
saved, with the same evaluation loss. `--random N` draws N cells from all settings that combine (random_cells.py); in a third of
them a rank is killed, and the run resumes.
"""

import argparse
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.matrix.command import Ranks
from benchmarks.reference.cells import Cell, cells
from benchmarks.reference.inputs import make_inputs
from benchmarks.reference.random_cells import random_cells
from benchmarks.reference.ranks import kill_file

LIMITS = {"loss": 1e-6, "gradient": 1e-4, "evaluation": 1e-6, "weights": 1e-4, "reloaded": 1e-6}
# Differences of a run in bf16 from a loop in fp32. Saved weights may be rounded by as much as a short training moves them.
BF16_LIMITS = {"loss": 0.02, "gradient": 0.1, "evaluation": 0.02, "weights": 1.0, "reloaded": 0.02}
PROGRAM = "benchmarks.reference.ranks"


@dataclass
class Finding:
    """The differences between a run and its reference, or the `reason` why they cannot be compared."""

    cell: str
    loss: float = math.nan
    gradient: float = math.nan
    evaluation: float = math.nan
    weights: float = math.nan
    reloaded: float = math.nan
    reason: str = ""

    @property
    def is_coarse(self) -> bool:
        return "precision=bf16" in self.cell

    @property
    def agrees(self) -> bool:
        limits = BF16_LIMITS if self.is_coarse else LIMITS
        return not self.reason and all(getattr(self, name) <= limit for name, limit in limits.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reference", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="only cells whose name matches this regular expression"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="at most N cells")
    parser.add_argument("--random", type=int, metavar="N", help="N random cells in place of the fixed ones")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log", type=Path, metavar="FILE", help="record findings, and skip cells recorded to agree")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ |= {"DS_ACCELERATOR": "cpu", "TRL_EXPERIMENTAL_SILENCE": "1"}  # avoids messages on stdout
    with tempfile.TemporaryDirectory(prefix="lathe-reference-") as folder:
        home = Path(folder)
        drawn = (
            random_cells(arguments.random, home, arguments.seed) if arguments.random else cells(home, arguments.seed)
        )
        matching = [cell for cell in drawn if re.search(arguments.only, cell.name)]
        findings = compare(matching[: arguments.limit], home, arguments.log)
    print(json.dumps(summary(findings), indent=1) if arguments.json else table(findings))
    sys.exit(not findings or not all(finding.agrees for finding in findings))


def compare(cells: list[Cell], home: Path, log: Path | None = None) -> list[Finding]:
    """Runs cells and their references in the folder `home`, without those that agree according to `log`."""
    known = _known(log)
    findings = [known[cell.name] for cell in cells if cell.name in known]
    waiting = sorted((cell for cell in cells if cell.name not in known), key=lambda cell: (cell.ranks, cell.strategy))
    for number, (cell, folder, reason) in enumerate(runs(waiting, home), start=1):
        finding = Finding(cell.name, reason=reason) if reason else compared(cell, folder)
        findings.append(finding)
        print(f"{number}/{len(waiting)} {_line(finding)}", file=sys.stderr, flush=True)
        if log:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(finding)) + "\n")
    return findings


def _known(log: Path | None) -> dict[str, Finding]:
    """Returns the findings of a log that agree, by cell."""
    lines = log.read_text(encoding="utf-8").splitlines() if log and log.exists() else []
    findings = [Finding(**json.loads(line)) for line in lines]
    return {finding.cell: finding for finding in findings if finding.agrees}


def runs(waiting: list[Cell], home: Path) -> Iterator[tuple[Cell, Path, str]]:
    """Runs cells, sorted by kind of ranks. Yields each with its folder, and the reason if it crashed, else an empty text."""
    if waiting:
        make_inputs(home)
    ranks: Ranks | None = None
    try:
        for number, cell in enumerate(waiting):
            if ranks and ranks.kind != (cell.ranks, cell.strategy):
                ranks.end()
                ranks = None
            ranks, folder = ranks or Ranks(cell, home / f"ranks-{number}", PROGRAM), home / f"run-{number}"
            if cell.killed_at:
                folder.mkdir()
                kill_file(folder, cell.ranks - 1).write_text(str(cell.killed_at))
                ranks.run(cell, folder)
                ranks.end()
                ranks = Ranks(cell, home / f"ranks-{number}-again", PROGRAM)
            _, reason = ranks.run(cell, folder)
            shared = cell.config.get("sequence_parallel_size", 1) > 1
            if (
                reason or shared
            ):  # crashed ranks cannot run another cell; DeepSpeed forgets no groups that share sequences
                ranks.end()
                ranks = None
            yield cell, folder, reason
    finally:
        if ranks:
            ranks.end()


def compared(cell: Cell, folder: Path) -> Finding:
    """Compares a run in its folder with its reference."""
    from benchmarks.reference.run import differences
    from benchmarks.reference.steps import MismatchError

    try:
        values: dict[str, Any] = differences(cell, folder)
        return Finding(cell.name, **values)
    except MismatchError as error:
        return Finding(cell.name, reason=str(error))


def summary(findings: list[Finding]) -> dict[str, Any]:
    """Returns the totals, the largest differences of runs in fp32, and the findings that disagree."""
    exact = [finding for finding in findings if not finding.is_coarse]
    return {
        "tried": len(findings),
        "agreed": sum(finding.agrees for finding in findings),
        **{f"worst_{name}": _worst(getattr(finding, name) for finding in exact) for name in LIMITS},
        "limits": LIMITS,
        "disagreed": [asdict(finding) for finding in findings if not finding.agrees],
    }


def _worst(values: Iterable[float]) -> float | None:
    """Returns the largest value; None if no cell could be compared."""
    return max((value for value in values if not math.isnan(value)), default=None)


def table(findings: list[Finding]) -> str:
    """Returns the cells that disagree, and a table with a line per kind of cell."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(re.split(r",| \w+=", finding.cell)[0], []).append(finding)
    lines = [f"| what | agreed | {' | '.join(LIMITS)} |", f"| --- | --- |{' --- |' * len(LIMITS)}"]
    for name, of_kind in [*kinds.items(), ("all", findings)]:
        figures = summary(of_kind)
        worst = [figures[f"worst_{limit}"] for limit in LIMITS]
        columns = " | ".join("-" if value is None else f"{value:.1e}" for value in worst)
        lines.append(f"| {name} | {figures['agreed']} of {figures['tried']} | {columns} |")
    return "\n".join([*(_line(finding) for finding in findings if not finding.agrees), *lines])


def _line(finding: Finding) -> str:
    figures = " ".join(f"{name} {getattr(finding, name):.1e}" for name in LIMITS)
    return f"{finding.cell}: {finding.reason or figures}{'' if finding.agrees else ' DISAGREES'}"

"""Real runs against plain loops: the same rows in the same order give the same loss, gradient norm and weights, however split.

`python -m benchmarks.reference [--only PATTERN] [--limit N] [--seed N] [--log FILE] [--json]`

Each cell (reference_cells.py) is a whole run of the training program in fp32 on tiny models, on CPU, with one rank or two. What
it reports is compared with a loop of its own (reference_loop.py, for preferences trl's trainers: reference_trl.py), which
imports nothing of training/ and makes tokens and labels of the rows by itself. From the run it takes the order of the rows,
which it looks up by their tokens, and the weights that were drawn at random at the beginning.

Compared are, as relative differences, the loss and the gradient norm before clipping of every step, the evaluation loss after
the last, and the saved weights: how far they are from the loop's, in units of how far training moved those. Also every row
must have trained once before any trains again.
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

from benchmarks.matrix import Ranks
from benchmarks.reference_cells import Cell, cells
from benchmarks.reference_inputs import make_inputs

LIMITS = {"loss": 1e-6, "gradient": 1e-4, "evaluation": 1e-6, "weights": 1e-4}
PROGRAM = "benchmarks.reference_ranks"


@dataclass
class Finding:
    """How far a run is from its reference; `reason` where it could not be compared."""

    cell: str
    loss: float = math.nan
    gradient: float = math.nan
    evaluation: float = math.nan
    weights: float = math.nan
    reason: str = ""

    @property
    def agrees(self) -> bool:
        return not self.reason and all(getattr(self, name) <= limit for name, limit in LIMITS.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cells whose name this regular expression finds")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many cells")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep findings there; run again, go on with the rest")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ |= {"DS_ACCELERATOR": "cpu", "TRL_EXPERIMENTAL_SILENCE": "1"}  # otherwise they are spoken of on stdout
    with tempfile.TemporaryDirectory(prefix="lathe-reference-") as folder:
        home = Path(folder)
        wanted = [cell for cell in cells(home, given.seed) if re.search(given.only, cell.name)][: given.limit]
        findings = compare(wanted, home, given.log)
    print(json.dumps(summary(findings), indent=1) if given.json else table(findings))
    sys.exit(not findings or not all(finding.agrees for finding in findings))


def compare(wanted: list[Cell], home: Path, log: Path | None = None) -> list[Finding]:
    """Runs cells and their references in the folder `home`, those that `log` knows to agree left out."""
    known = _known(log)
    findings = [known[cell.name] for cell in wanted if cell.name in known]
    waiting = sorted((cell for cell in wanted if cell.name not in known), key=lambda cell: (cell.ranks, cell.strategy))
    for number, (cell, folder, reason) in enumerate(runs(waiting, home), start=1):
        finding = Finding(cell.name, reason=reason) if reason else compared(cell, folder)
        findings.append(finding)
        print(f"{number}/{len(waiting)} {_line(finding)}", file=sys.stderr, flush=True)
        if log:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(finding)) + "\n")
    return findings


def _known(log: Path | None) -> dict[str, Finding]:
    """The cells of a log that agreed."""
    lines = log.read_text(encoding="utf-8").splitlines() if log and log.exists() else []
    findings = [Finding(**json.loads(line)) for line in lines]
    return {finding.cell: finding for finding in findings if finding.agrees}


def runs(waiting: list[Cell], home: Path) -> Iterator[tuple[Cell, Path, str]]:
    """Runs cells, those of the same kind of ranks one after another: each with its folder, and why it crashed or nothing."""
    if waiting:
        make_inputs(home)
    ranks: Ranks | None = None
    try:
        for number, cell in enumerate(waiting):
            if ranks and ranks.kind != (cell.ranks, cell.strategy):
                ranks.end()
                ranks = None
            ranks = ranks or Ranks(cell, home / f"ranks-{number}", PROGRAM)
            _, reason = ranks.run(cell, home / f"run-{number}")
            if reason:  # what crashed cannot take another cell
                ranks.end()
                ranks = None
            yield cell, home / f"run-{number}", reason
    finally:
        if ranks:
            ranks.end()


def compared(cell: Cell, folder: Path) -> Finding:
    """What a run in its folder came to, against its reference."""
    from benchmarks.reference_run import MismatchError, differences

    try:
        return Finding(cell.name, **differences(cell, folder))
    except MismatchError as error:
        return Finding(cell.name, reason=str(error))


def summary(findings: list[Finding]) -> dict[str, Any]:
    """The figures of all cells, and those of the cells that did not agree."""
    return {
        "tried": len(findings),
        "agreed": sum(finding.agrees for finding in findings),
        **{f"worst_{name}": _worst(getattr(finding, name) for finding in findings) for name in LIMITS},
        "limits": LIMITS,
        "disagreed": [asdict(finding) for finding in findings if not finding.agrees],
    }


def _worst(values: Iterable[float]) -> float | None:
    """The largest; None where no cell could be compared."""
    return max((value for value in values if not math.isnan(value)), default=None)


def table(findings: list[Finding]) -> str:
    """The cells that did not agree, and a line for each kind of cell."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(finding.cell.split(",")[0], []).append(finding)
    lines = [f"| what | agreed | {' | '.join(LIMITS)} |", f"| --- | --- |{' --- |' * len(LIMITS)}"]
    for name, found in [*kinds.items(), ("all", findings)]:
        figures = summary(found)
        worst = [figures[f"worst_{limit}"] for limit in LIMITS]
        words = " | ".join("-" if value is None else f"{value:.1e}" for value in worst)
        lines.append(f"| {name} | {figures['agreed']} of {figures['tried']} | {words} |")
    return "\n".join([*(_line(finding) for finding in findings if not finding.agrees), *lines])


def _line(finding: Finding) -> str:
    figures = " ".join(f"{name} {getattr(finding, name):.1e}" for name in LIMITS)
    return f"{finding.cell}: {finding.reason or figures}{'' if finding.agrees else ' DISAGREES'}"


if __name__ == "__main__":
    main()

"""Compares forecast and simulation of memory with measurements: the peak of live storages in real training runs on CPU.

`python -m benchmarks.forecast [--only WORD ...] [--truth FILE] [--json]`
`python -m benchmarks.forecast --random N --seed S [--task NAME] [--verify N] [--truth FILE --keep FOLDER] [--json]`

Each configuration is a run of the training program in which all batches are the largest. A memory limit that it never reaches makes
it count storages (training/reports/live_memory.py); sharded strategies run several ranks. Measurements are compared with the
formulas (training/forecast/forecast.py), the simulation (training/simulation/simulate.py),
accelerate's estimate of training with Adam, and DeepSpeed's of ZeRO-2 and ZeRO-3. `--truth` stores measurements in a file and
reuses those it contains.

With `--random` the configurations are drawn, and judged by their verdicts (benchmarks/forecast/random_command.py).

Exits with 1 if the median or worst error is above 3% or 10% (simulation), or above 8% or 20% (formulas).
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.forecast.estimators import accelerate_says, deepspeed_says
from benchmarks.forecast.inputs import Case, cases, make_inputs
from benchmarks.matrix.command import Ranks
from training.config.choices import Precision
from training.config.run_config import RunConfig

ALLOWED = {"simulation": (3.0, 10.0), "formula": (8.0, 20.0)}
MIB = 2**20
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecast", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="only configurations with these words in their names"
    )
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="store measurements there, and reuse those it contains"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--random", type=int, metavar="N", help="judge N random configurations by their verdicts")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the random configurations")
    parser.add_argument(
        "--task", metavar="NAME", help="draw only configurations of this task; also grpo, which is else left out"
    )
    parser.add_argument("--verify", type=int, default=0, metavar="N", help="run N of them again under limits")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep models and runs there, for a later --truth")
    options = parser.parse_args()
    if options.random:
        from benchmarks.forecast.random_command import run

        run(options)
    # DeepSpeed writes its warnings to standard output, which is for the answer.
    with tempfile.TemporaryDirectory(prefix="lathe-forecast-") as home, contextlib.redirect_stdout(sys.stderr):
        make_inputs(Path(home))
        selected = [case for case in cases(Path(home)) if set(options.only) <= set(case.name.split())]
        counted = count(selected, Path(home), options.truth)
        rows = [compare(case, counted[case.name]) for case in selected if case.name in counted]
    errors = summary(rows)
    print(json.dumps({"rows": rows, "summary": errors}, indent=1) if options.json else table(rows, errors))
    missed = [name for name, limits in ALLOWED.items() if not within(errors.get(name), limits)]
    sys.exit(bool(missed) or len(rows) < len(selected))


def count(selected: list[Case], home: Path, file: Path | None) -> dict[str, int]:
    """Returns the highest peak of any rank of each case, in bytes; reports crashed cases, which have none."""
    counted: dict[str, int] = json.loads(file.read_text()) if file and file.exists() else {}
    ranks: Ranks | None = None
    waiting = sorted(
        (case for case in selected if case.name not in counted), key=lambda case: (case.ranks, case.strategy)
    )
    for number, case in enumerate(waiting):
        if ranks is None or ranks.kind != (case.ranks, case.strategy):
            if ranks:
                ranks.end()
            ranks = Ranks(case, home / f"ranks-{number}")
        outcome, reason = ranks.run(case, home / f"run-{number}")
        if outcome == "worked":
            counted[case.name] = _peak(home / f"run-{number}")
            if file:
                file.write_text(json.dumps(counted, indent=1))
        else:
            ranks.end()
            ranks = None
        print(f"{number + 1}/{len(waiting)} {case.name}: {outcome} {reason}", file=sys.stderr, flush=True)
    if ranks:
        ranks.end()
    return counted


def _peak(folder: Path) -> int:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    finished = next(record for record in reversed(records) if "summary" in record)
    return int(max(finished["summary"]["memory"]["peak_bytes"]))


def compare(case: Case, truth: int) -> Row:
    """Returns all predictions for a case in bytes, and their errors in percent."""
    config = RunConfig.model_validate(case.config)
    predictions = {
        "formula": formula(case),
        "simulation": simulation(case),
        "accelerate": accelerate_says(config),
        "deepspeed": deepspeed_says(config),
    }
    errors = {name: 100 * (value / truth - 1) for name, value in predictions.items() if value is not None}
    print(f"{case.name}: {', '.join(f'{name} {error:+.1f}%' for name, error in errors.items())}", file=sys.stderr)
    return {"name": case.name, "truth": truth, "said": predictions, "errors": errors}


def simulation(case: Case) -> int:
    from training.simulation.batches import SimulationRequest
    from training.simulation.simulate import simulate

    config = RunConfig.model_validate(case.config)
    batch: dict[str, Any] = {"lengths": [case.source] * case.rows, "targets": [case.length] * case.rows}
    labeled = [case.length // 2] * case.rows
    precision = Precision(case.precision)
    return simulate(SimulationRequest(config, **batch, labeled=labeled, device="cpu", precision=precision)).peak_bytes


def formula(case: Case) -> int:
    from training.forecast.forecast import estimate
    from training.forecast.formula.activations import Batch
    from training.model_info.families import read_shape
    from training.tokens.order import padded

    config = RunConfig.model_validate(case.config)
    rows, length = case.rows, case.length
    if case.shape == "t5":
        source, target = padded(case.source), padded(length)
        batch = Batch(rows, source, rows * source, rows * target, target, rows * target)
    else:
        batch = Batch(rows, length, rows * length, rows * (length // 2), flat=True)
    return estimate(config, read_shape(Path(config.model) / "config.json"), batch=batch).allocated_bytes


def summary(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Returns for each predictor the number of cases, and the median and worst absolute errors in percent."""
    errors = {}
    for name in ("formula", "simulation", "accelerate", "deepspeed"):
        sizes = [abs(row["errors"][name]) for row in rows if name in row["errors"]]
        if sizes:
            errors[name] = {"count": len(sizes), "median": statistics.median(sizes), "worst": max(sizes)}
    return errors


def within(errors: dict[str, float] | None, limits: tuple[float, float]) -> bool:
    """True if median and worst errors are within their limits."""
    return errors is not None and errors["median"] <= limits[0] and errors["worst"] <= limits[1]


def table(rows: list[Row], errors: dict[str, dict[str, float]]) -> str:
    """Returns a line per case: MiB, and the error of each predictor."""
    lines = [f"{'':52}{'truth':>12}{'formula':>20}{'simulation':>20}{'accelerate':>20}{'deepspeed':>20}"]
    for row in rows:
        columns = "".join(f"{_cell(row, name):>20}" for name in ("formula", "simulation", "accelerate", "deepspeed"))
        lines.append(f"{row['name']:52}{row['truth'] / MIB:8,.1f} MiB{columns}")
    for name, one in errors.items():
        lines.append(f"{name}: median error {one['median']:.1f}%, worst {one['worst']:.1f}%, of {one['count']:.0f}")
    return "\n".join(lines)


def _cell(row: Row, name: str) -> str:
    value = row["said"][name]
    return "-" if value is None else f"{value / MIB:,.1f} ({row['errors'][name]:+.1f}%)"

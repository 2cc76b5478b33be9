"""Forecast and simulation of memory against the truth: the peak of live storages, counted in real training runs on CPU.

`python -m benchmarks.forecast [--only WORD ...] [--truth FILE] [--json]`

Each configuration is a run of the training program whose every batch is the worst, under a memory limit that it stays below, so
that its storages are counted (training/live_memory.py); several ranks run where the strategy shares. Beside the truth stand the
formulas (training/memory.py), the simulation (training/simulate.py), accelerate's estimate of training with Adam, and DeepSpeed's
of ZeRO-2 and ZeRO-3. `--truth` keeps what was counted in a file, and takes what is there already.

Exits with 1 where the simulation's median error is above 3% or its worst above 10%, or the formulas' above 8% or 20%.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.forecast_inputs import Case, cases, make_inputs
from benchmarks.matrix import Ranks
from training.config import Precision, RunConfig

ALLOWED = {"simulation": (3.0, 10.0), "formula": (8.0, 20.0)}
MIB = 2**20
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="configurations with these words in their names"
    )
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="keep what was counted there, and take what is known"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lathe-forecast-") as home:
        make_inputs(Path(home))
        wanted = [case for case in cases(Path(home)) if set(given.only) <= set(case.name.split())]
        counted = count(wanted, Path(home), given.truth)
        rows = [compare(case, counted[case.name]) for case in wanted if case.name in counted]
    found = summary(rows)
    print(json.dumps({"rows": rows, "summary": found}, indent=1) if given.json else table(rows, found))
    missed = [name for name, limits in ALLOWED.items() if not within(found.get(name), limits)]
    sys.exit(bool(missed) or len(rows) < len(wanted))


def count(wanted: list[Case], home: Path, kept: Path | None) -> dict[str, int]:
    """The highest peak of any rank of each case, in bytes; a case that crashed has none, and says so."""
    counted: dict[str, int] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    ranks: Ranks | None = None
    waiting = sorted(
        (case for case in wanted if case.name not in counted), key=lambda case: (case.ranks, case.strategy)
    )
    for number, case in enumerate(waiting):
        if ranks is None or ranks.kind != (case.ranks, case.strategy):
            if ranks:
                ranks.end()
            ranks = Ranks(case, home / f"ranks-{number}")
        outcome, reason = ranks.run(case, home / f"run-{number}")
        if outcome == "worked":
            counted[case.name] = _peak(home / f"run-{number}")
            if kept:
                kept.write_text(json.dumps(counted, indent=1))
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
    """What everybody says of a case, in bytes, and the errors in percent."""
    said = {
        "formula": formula(case),
        "simulation": simulation(case),
        "accelerate": accelerate_says(case),
        "deepspeed": deepspeed_says(case),
    }
    errors = {name: 100 * (value / truth - 1) for name, value in said.items() if value is not None}
    print(f"{case.name}: {', '.join(f'{name} {error:+.1f}%' for name, error in errors.items())}", file=sys.stderr)
    return {"name": case.name, "truth": truth, "said": said, "errors": errors}


def simulation(case: Case) -> int:
    from training.simulate import Request, simulate

    config = RunConfig.model_validate(case.config)
    batch = {"lengths": [case.source] * case.rows, "targets": [case.length] * case.rows}
    labelled = [case.length // 2] * case.rows
    precision = Precision(case.precision)
    return simulate(Request(config, **batch, labelled=labelled, device="cpu", precision=precision)).peak_bytes


def formula(case: Case) -> int:
    from training.activations import Batch
    from training.memory import forecast
    from training.model_families import read_shape
    from training.order import padded

    config = RunConfig.model_validate(case.config)
    rows, length = case.rows, case.length
    if case.shape == "t5":
        source, target = padded(case.source), padded(length)
        batch = Batch(rows, source, rows * source, rows * target, target, rows * target)
    else:
        batch = Batch(rows, length, rows * length, rows * (length // 2), flat=True)
    return forecast(config, read_shape(Path(config.model) / "config.json"), batch=batch).allocated_bytes


def accelerate_says(case: Case) -> int:
    """`accelerate estimate-memory`: the largest of its columns for training with Adam."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    size, _ = calculate_maximum_sizes(_empty(case))
    names = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    return max(estimate_training_usage(size, names[case.precision]).values())


def deepspeed_says(case: Case) -> int | None:
    """DeepSpeed's estimate of what ZeRO-2 or ZeRO-3 takes of each GPU, without offload."""
    if case.strategy not in ("zero2", "zero3"):
        return None
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    model = _empty(case)
    total = sum(one.numel() for one in model.parameters())
    if case.strategy == "zero2":
        return int(estimate_zero2_model_states_mem_needs(total, case.ranks, cpu_offload=False)[1])
    largest = max(sum(one.numel() for one in part.parameters(recurse=False)) for part in model.modules())
    found = estimate_zero3_model_states_mem_needs(
        total, largest, case.ranks, cpu_offload=False, cpu_offload_params=False
    )
    return int(found[1])


def _empty(case: Case) -> Any:
    from training.targets import empty_model

    return empty_model(RunConfig.model_validate(case.config))


def summary(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Of each who says something: how often, and the median and the worst of the errors' sizes in percent."""
    found = {}
    for name in ("formula", "simulation", "accelerate", "deepspeed"):
        sizes = [abs(row["errors"][name]) for row in rows if name in row["errors"]]
        if sizes:
            found[name] = {"count": len(sizes), "median": statistics.median(sizes), "worst": max(sizes)}
    return found


def within(found: dict[str, float] | None, limits: tuple[float, float]) -> bool:
    """Whether median and worst error keep to their limits."""
    return found is not None and found["median"] <= limits[0] and found["worst"] <= limits[1]


def table(rows: list[Row], found: dict[str, dict[str, float]]) -> str:
    """A line a case: MiB, and how far each is off."""
    lines = [f"{'':52}{'truth':>12}{'formula':>20}{'simulation':>20}{'accelerate':>20}{'deepspeed':>20}"]
    for row in rows:
        said = "".join(f"{_cell(row, name):>20}" for name in ("formula", "simulation", "accelerate", "deepspeed"))
        lines.append(f"{row['name']:52}{row['truth'] / MIB:8,.1f} MiB{said}")
    for name, one in found.items():
        lines.append(f"{name}: median error {one['median']:.1f}%, worst {one['worst']:.1f}%, of {one['count']:.0f}")
    return "\n".join(lines)


def _cell(row: Row, name: str) -> str:
    value = row["said"][name]
    return "-" if value is None else f"{value / MIB:,.1f} ({row['errors'][name]:+.1f}%)"


if __name__ == "__main__":
    main()

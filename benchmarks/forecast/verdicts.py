"""Runs random configurations and compares their peak memory, and the verdicts that follow from it, with the forecasts."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from benchmarks.forecast.estimators import accelerate_says, deepspeed_says
from benchmarks.forecast.forked_ranks import ForkedRanks
from benchmarks.forecast.random_cases import RandomCase, write_rows
from benchmarks.forecast.random_models import make_model
from training.config.run_config import RunConfig
from training.errors import UserError
from training.forecast.forecast import DOUBT
from training.forecast.formula.sizes import resolved
from training.simulation.batches import SimulationRequest
from training.simulation.simulate import simulate
from training.tokens.run_rows import RowLengths, halved
from training.tokens.store import open_store
from worker.forecasts import simulating
from worker.forecasts.forecast import Estimate, Setup, estimate_run
from worker.forecasts.shapes import shape_at

Row = dict[str, Any]
ENOUGH = 0.9
"""A run that lives under this share of what is said to be needed was wrongly said not to fit."""


@dataclass
class Measured:
    """The highest peak of any rank in bytes, and the phase in which it was reached; or why the run did not end well."""

    peak: int = 0
    phase: str = ""
    problem: str = ""


def measure(
    cases: list[RandomCase], home: Path, known: dict[str, Measured], keep: Callable[[dict[str, Measured]], None]
) -> None:
    """Runs the cases that are not `known`, adds them by name, and has each kept, so that an interruption costs one run."""
    waiting = [case for case in cases if case.name not in known]
    with ForkedRanks(home / "ranks.log") as ranks:
        for number, case in enumerate(waiting):
            prepare(case, home)
            folder = run_folder(case, home)
            outcome, reason = ranks.run(case, folder)
            known[case.name] = _peak(folder) if outcome == "worked" else Measured(problem=reason)
            keep(known)
            print(f"{number + 1}/{len(waiting)} {case.name}: {outcome} {reason}", file=sys.stderr, flush=True)


def run_folder(case: RandomCase, home: Path) -> Path:
    return home / f"run-{case.seed}-{case.number}"


def prepare(case: RandomCase, home: Path) -> None:
    """Makes the model and the rows of a case, and puts their paths into its configuration."""
    model, rows = home / f"model-{case.seed}-{case.number}", home / f"rows-{case.seed}-{case.number}.jsonl"
    if not model.exists():
        make_model(case.model, model, case.seed)
        write_rows(case, rows)
    case.config |= {"model": str(model), "data": str(rows)}


def _peak(folder: Path) -> Measured:
    ranks = [json.loads(file.read_text()) for file in sorted(folder.glob("peaks-*.json"))]
    highest = max(ranks, key=lambda phases: phases[-1][1])
    peak = int(highest[-1][1])
    return Measured(peak, next(phase for phase, size in highest if size == peak))


def compare(case: RandomCase, home: Path, truth: Measured) -> Row:
    """All predictions for a case in bytes, their errors in percent, and the verdicts."""
    config = RunConfig.model_validate(case.config)
    shape = shape_at(config.model)
    estimate = estimate_run(Setup(config, shape, None, rows=lengths(case, home)))
    formula = estimate.forecast.allocated_bytes
    simulated, fault = _simulated(config, estimate)
    said: dict[str, int | None] = {"formula": formula, "simulation": simulated}
    said |= {"accelerate": accelerate_says(config), "deepspeed": deepspeed_says(config)}
    errors = {name: 100 * (value / truth.peak - 1) for name, value in said.items() if value is not None}
    needed = {name: value for name, value in said.items() if value is not None}
    needed["formula"] += estimate.forecast.parts["slack"]
    if "simulation" in needed:
        needed["simulation"] += estimate.forecast.beyond_steps(needed["simulation"])
    doubts = {"formula": DOUBT}  # a simulated step decides where its forecast is closer to the limit
    verdicts = {name: verdict(truth.peak, value, doubts.get(name, 0.0)) for name, value in needed.items()}
    worst = estimate.worst.step if estimate.worst else 0
    print(f"{case.name}: {', '.join(f'{name} {error:+.1f}%' for name, error in errors.items())}", file=sys.stderr)
    about = {"name": case.name, "case": f"{case.seed}:{case.number}", "phase": truth.phase, "worst_step": worst}
    about["fault"] = fault
    about |= {
        "moment": estimate.forecast.moment,
        "family": case.model["model_type"],
        "config": case.config,
        "parts": estimate.forecast.parts,
    }
    return about | {"truth": truth.peak, "said": said, "needed": needed, "errors": errors, "verdicts": verdicts}


def verdict(peak: int, needed: int, doubt: float = 0.0) -> str:
    """`dies`: a run with the least limit of which Lathe says "fits" runs out of memory. `lives`: it fits into 0.9 of what is said
    to be needed. Else `right`."""
    return "dies" if peak > needed * (1 + doubt) else "lives" if peak <= ENOUGH * needed else "right"


def lengths(case: RandomCase, home: Path) -> RowLengths | None:
    """The token counts that the run made; of an encoder-decoder those of source and target, each with an end token."""
    if case.config["task"] == "seq2seq":
        sources, targets = (np.array(sizes) + 1 for sizes in zip(*case.rows, strict=True))
        return halved(RowLengths(sources + targets, sources))
    stores = [path.parent for path in (run_folder(case, home) / "tokens").rglob("facts.json")]
    if len(stores) != 1:
        return None
    store = open_store(stores[0])
    trained = store.first_trained_with(train_on_prompt=bool(case.config.get("train_on_prompt")))
    return RowLengths(np.asarray(store.lengths), trained)


def _simulated(config: RunConfig, estimate: Estimate) -> tuple[int | None, str]:
    """The simulated peak, None where there is none; and the error, if the simulation should have succeeded."""
    values = simulating.simulated_batch(estimate) | {"config": config, "device": "cpu"}
    request = TypeAdapter(SimulationRequest).validate_python(values | {"precision": resolved(config.precision, None)})
    try:
        return estimate.forecast.with_steps(simulate(request).peak_bytes), ""
    except UserError as error:
        print(f"not simulated: {str(error)[:300]}", file=sys.stderr)
        return None, ""
    except Exception as error:  # of any operator: the benchmark fails, and the other cases are still judged
        return None, f"simulation: {type(error).__name__} {str(error)[:300]}"

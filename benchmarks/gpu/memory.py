"""Part memory: compares forecast and simulation with steps of the real trainer, on random weights of up to 8B parameters.

It builds and trains each configuration in this process with training/'s own functions; weights are initialized on the device, and
nothing is written to disk. Simulations run in other processes at the same time. On CPU it counts live storages.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench, Job, installed
from benchmarks.gpu.memory_cases import LARGE, SMALL, Case, write_shapes
from training.config.run_config import RunConfig

ALLOWED = {"simulated": (3.0, 10.0), "forecast": (8.0, 20.0)}
"""Median and worst error in percent, as benchmarks/forecast/command.py allows on CPU."""
TABLE = "Memory at its peak"
_SECONDS = 8  # time limit of a configuration
_AT_MOST = 0.92  # share of the GPU's memory, by forecast; larger cases are skipped


Sizes = tuple[int, int]


@dataclass(frozen=True)
class Foretold:
    """Predicted bytes: live at the peak, and with context and allocator overhead."""

    live: int
    whole: int


def measure(bench: Bench) -> None:
    from benchmarks.gpu.memory_steps import Meter, took

    write_shapes(bench.home)
    meter = Meter(bench)  # before the first use of CUDA
    selected = [case for case in (SMALL if bench.small else LARGE) if fits(bench, case)]
    with simulations(bench, selected) as simulated:
        rows = {}
        for case in selected:
            if bench.has_time(_SECONDS + 5, case.name):
                config = RunConfig.model_validate(case.config(bench.home))
                rows[case.name] = tell(bench, case, took(meter, config, case))
        for name, row in rows.items():
            if row:
                add_simulated(bench, name, row, simulated[name])
    judge(bench, bench.found["tables"].get(TABLE, []))
    if bench.small:
        bench.note("The forecast's errors have no limit here: its formulas are for models of realistic size.")


@contextmanager
def simulations(bench: Bench, cases: list[Case]) -> Iterator[dict[str, Callable[[], Sizes]]]:
    """Returns functions that return each case's simulated bytes; large cases are simulated in processes started here."""
    card = this_card(bench)
    workspaces = card.workspace_bytes if card else 0
    asked = {case.name: (case, bench.home, bench.device, workspaces) for case in cases}
    if bench.small:
        yield {name: partial(simulation, *what) for name, what in asked.items()}
        return
    workers = max(2, (os.cpu_count() or 2) - 4)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=without_gpu) as pool:
        begun = {name: pool.submit(simulation, *what) for name, what in asked.items()}
        yield {name: partial(waited, bench, future) for name, future in begun.items()}
        for process in list((pool._processes or {}).values()):  # end late ones
            process.kill()


def waited(bench: Bench, future: "Future[Sizes]") -> Sizes:
    return future.result(timeout=max(bench.left(), 0.01) if bench.on_cuda else None)


def without_gpu() -> None:
    """Hides the GPU from a process that simulates."""
    import torch

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)


def simulation(case: Case, home: Path, device: Any, workspace_bytes: int = 0) -> Sizes:
    """Returns the simulated bytes that are live and reserved at their peaks (training/simulation/simulate.py)."""
    from training.simulation.batches import SimulationRequest
    from training.simulation.simulate import simulate

    config = RunConfig.model_validate(case.config(home))
    lengths = [case.length] * case.rows
    labeled = [case.length // 2] * case.rows
    request = SimulationRequest(
        config, lengths, labeled=labeled, device=device, precision=config.precision, workspace_bytes=workspace_bytes
    )
    done = simulate(request)
    return done.peak_bytes, done.reserved_bytes


def foretell(case: Case, home: Path, card: Any) -> Foretold:
    """Returns the forecast of a case (training/forecast/forecast.py)."""
    from training.forecast.forecast import estimate
    from training.forecast.formula.activations import Batch
    from training.model_info.families import read_shape

    config = RunConfig.model_validate(case.config(home))
    batch = Batch(
        case.rows, case.length, case.rows * case.length, case.rows * (case.length // 2),
        flat=case.settings.get("packing") == "padding_free",
    )  # fmt: skip
    forecast = estimate(config, read_shape(home / case.shape / "config.json"), card=card, batch=batch)
    return Foretold(forecast.allocated_bytes, forecast.peak_bytes)


def this_card(bench: Bench) -> Any:
    """Returns this machine's GPU, or None."""
    import torch

    from training.forecast.gpus import like

    if not bench.on_cuda:
        return None
    return like(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory)


def fits(bench: Bench, case: Case) -> bool:
    """True if a case fits on this machine; else records why not."""
    if case.needs_bitsandbytes and not installed("bitsandbytes"):
        bench.skip(case.name, "bitsandbytes is not installed")
        return False
    card = this_card(bench)
    if card and foretell(case, bench.home, card).whole > _AT_MOST * card.memory_bytes:
        bench.skip(case.name, f"its forecast does not fit on {card.label}")
        return False
    return True


def tell(bench: Bench, case: Case, measured: dict[str, Any]) -> dict[str, Any] | None:
    """Adds a row: predicted and measured bytes, and the errors in percent of allocated memory or of the GPU's memory in use."""
    if "problem" in measured:
        bench.require(f"{case.name} trains", False, measured["problem"])
        return None
    foretold = foretell(case, bench.home, this_card(bench))
    allocated, in_use = measured["allocated"], measured.get("in_use")
    return bench.row(
        TABLE, configuration=case.name, forecast_bytes=foretold.live, simulated_bytes=None, allocated_bytes=allocated,
        simulated_reserved_bytes=None, reserved_bytes=measured.get("reserved"), forecast_whole_bytes=foretold.whole,
        nvml_bytes=in_use, forecast_percent=off(foretold.live, allocated), simulated_percent=None, reserved_percent=None,
        nvml_percent=off(foretold.whole, in_use),
    )  # fmt: skip


def add_simulated(bench: Bench, name: str, row: dict[str, Any], simulated: Callable[[], Sizes]) -> None:
    """Adds the simulated bytes to a row, if they are ready in time."""
    try:
        row["simulated_bytes"], row["simulated_reserved_bytes"] = simulated()
    except Exception as error:  # the measurement counts even if the simulation fails
        bench.skip(f"simulation of {name}", f"{type(error).__name__} {error}".strip()[:200])
    row["simulated_percent"] = off(row["simulated_bytes"], row["allocated_bytes"])
    row["reserved_percent"] = off(row["simulated_reserved_bytes"], row["reserved_bytes"])
    bench.save()


def predict_again(part: dict[str, Any], machine: dict[str, str], home: Path) -> dict[str, Any]:
    """Compares what was measured on another machine with today's forecast and simulation."""
    from training.forecast.gpus import like

    write_shapes(home)
    bench = Bench(Job(str(home), str(home / "found.json"), "cpu", False, 0.0))
    card = like(machine["card"], int(float(machine["memory"].split()[0]) * 2**30))
    cases = {case.name: case for case in LARGE}
    for row in part["tables"][TABLE]:
        case = cases[row["configuration"]]
        foretold, whole = foretell(case, home, card), row["nvml_bytes"]
        row |= {"forecast_bytes": foretold.live, "forecast_percent": off(foretold.live, row["allocated_bytes"])}
        row |= {"forecast_whole_bytes": foretold.whole, "nvml_percent": off(foretold.whole, whole)}
        add_simulated(
            bench, case.name, row, partial(simulation, case, home, "cuda", card.workspace_bytes if card else 0)
        )
    judge(bench, part["tables"][TABLE])
    return part | {"checks": bench.found["checks"]}


def off(foretold: int | None, taken: int | None) -> float | None:
    """Returns the relative error of a prediction in percent."""
    return 100 * (foretold / taken - 1) if foretold and taken else None


def judge(bench: Bench, rows: Sequence[dict[str, Any]]) -> None:
    """Adds the median and worst errors of forecast and simulation."""
    for name, limits in ALLOWED.items():
        if name == "forecast" and bench.small:
            continue
        errors = [abs(row[f"{name}_percent"]) for row in rows if row[f"{name}_percent"] is not None]
        bench.require(f"{name}: configurations compared", bool(errors), f"{len(errors)}")
        if errors:
            bench.check(f"{name}: median error in percent", statistics.median(errors), limits[0])
            bench.check(f"{name}: worst error in percent", max(errors), limits[1])
    reserved = [abs(row["reserved_percent"]) for row in rows if row["reserved_percent"] is not None]
    if reserved:
        bench.check("simulated reserved memory: median error in percent", statistics.median(reserved), 5.0)
    whole = [abs(row["nvml_percent"]) for row in rows if row["nvml_percent"] is not None]
    if whole:
        bench.check(
            "forecast with context and slack against NVML: median error in percent", statistics.median(whole), 10.0
        )

"""Part ranks: two GPUs under each strategy against one, and a rank that is killed between its collectives. Skipped with one GPU."""

import os
import signal
import time
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.runs import (
    configured,
    end,
    make_model,
    make_rows,
    records,
    start,
    threads,
    train_all,
    worst_difference,
)
from training.config.run_config import RunConfig
from training.run_folder.events import Metrics, RankStarted

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp")
CURVE_LIMIT = 1e-4  # fp32 sums in another order
END_SECONDS = 60.0
"""Within which the launcher ends the other rank; a collective by itself waits for ten minutes."""


def measure(bench: Bench) -> None:
    if bench.on_cuda and (count := _gpus()) < 2:
        bench.skip("two GPUs", f"this machine has {count}")
        return
    model = make_model(bench.home / "model", hidden=64 if bench.small else 512, layers=2 if bench.small else 8)
    data = make_rows(bench.home / "rows.jsonl", 64, 256)
    shared: dict[str, Any] = {"max_steps": 6 if bench.small else 20, "precision": "fp32", "method": "full"}

    def config(**settings: Any) -> RunConfig:
        return configured(model, data, learning_rate=1e-4, **shared, **settings)

    two: dict[str, Any] = {"num_processes": 2, "micro_batch_size": 2}
    jobs = {name: (config(strategy=name, **two), bench.device) for name in STRATEGIES}
    runs = train_all(bench, jobs | {"single": (config(micro_batch_size=4), bench.device)})
    expected = runs["single"]
    bench.require("one rank finishes", not expected.problem, expected.problem)
    for name in STRATEGIES:
        run = runs[name]
        bench.require(f"{name} on two ranks finishes", not run.problem, run.problem)
        differ = worst_difference(run.series("loss"), expected.series("loss"))
        speed = list(run.series("tokens_per_second").values())
        bench.row("Two ranks against one", strategy=name, difference=differ, tokens_per_second=max(speed, default=None))
        bench.check(f"{name} on two ranks: difference of losses from one", differ, CURVE_LIMIT)
    _kill_a_rank(bench, config(strategy="ddp", **two).model_copy(update={"max_steps": 10_000}))


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _kill_a_rank(bench: Bench, config: RunConfig) -> None:
    """Kills rank 1 while it trains, and measures how long rank 0 waits for it in its next collective."""
    folder = bench.home / "killed"
    process = start(folder, config, bench.device, threads())
    ends = time.monotonic() + (bench.left() if bench.on_cuda else 600.0)
    while process.poll() is None and time.monotonic() < ends and not _trains(folder):
        time.sleep(0.05)
    ranks = {event.rank: event.pid for event in records(folder) if isinstance(event, RankStarted)}
    if process.poll() is not None or 1 not in ranks:
        end(process)
        bench.require("a run on two ranks trains until a rank is killed", False, "it ended before")
        return
    os.kill(ranks[1], signal.SIGKILL)
    killed = time.monotonic()
    while process.poll() is None and time.monotonic() < killed + 2 * END_SECONDS:
        time.sleep(0.05)
    seconds = time.monotonic() - killed
    end(process)
    bench.check("seconds until the run ends whose rank was killed", seconds, END_SECONDS)


def _trains(folder: Any) -> bool:
    return any(isinstance(event, Metrics) and event.step >= 2 for event in records(folder))

"""Metric rows that supervisors store in a second."""

import statistics
import time

from benchmarks.history import STEP_ROWS, reports
from benchmarks.scale.limits.processes import at_once
from training.config.run_config import RunConfig
from worker.store import claims, database, history, runs

STEPS = 25
"""Of one batch: what a supervisor reads every half second from a run with 50 steps a second, each with the rows of two ranks."""
_TOTAL_STEPS = 100_000


def stored(writers: int, seconds: float) -> tuple[float, float]:
    """Lets supervisors of several runs store batches without pause. Returns rows a second of all together, and the 95th percentile
    of a batch's seconds."""
    found = at_once(writers, _store, seconds)
    rows = sum(len(taken) for taken, _ in found) * STEPS * STEP_ROWS
    latencies = [one for taken, _ in found for one in taken]
    return rows / max(elapsed for _, elapsed in found), statistics.quantiles(latencies, n=20)[-1]


def _store(number: int, seconds: float) -> tuple[list[float], float]:
    with database.write() as session:
        run = runs.create(session=session, config=RunConfig(model="gpt2", data="alpaca.jsonl"), dataset_id=None)
        device = f"writer/{run.id}"
        claims.claim(session=session, run_id=run.id, owner=f"w{number}:1:1", devices=[device], lease_seconds=600)
    taken: list[float] = []
    began, first = time.perf_counter(), 1
    while time.perf_counter() - began < seconds or len(taken) < 2:
        events = list(reports(range(first, first + STEPS), _TOTAL_STEPS))
        start = time.perf_counter()
        with database.write() as session:
            history.apply(session=session, run_id=run.id, attempt=1, events=events, new_offset=first)
        taken.append(time.perf_counter() - start)
        first += STEPS
    return taken, time.perf_counter() - began

"""How long the server takes for what the page of a run shows, and how large that is, when the run has a million metric rows.

    python -m benchmarks.history [--rows 1000000] [--json]

A temporary database is filled through the functions that a live run's supervisor uses. Then the page's value is made
again and again: cold, which is the first time in a server process that has only listed the runs so far (nothing of this
page is cached or compiled), and warm. Beside it, in the same run, what is usually done instead: every row of a series is
selected, and each n-th is kept.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sqlmodel import select

from training.config import RunConfig
from training.events import CheckpointSaved, Event, Metrics, PhaseStarted
from worker import database, history, logs, metrics, runs
from worker.models import Metric
from worker.settings import get_settings

SERIES = ("loss", "learning_rate", "grad_norm", "tokens_per_second")
MEMORY = ("memory_allocated", "memory_reserved", "memory_peak", "host_rss")
RANKS = 2
STEP_ROWS = len(SERIES) + len(MEMORY) * RANKS
BATCH_STEPS = 200
LOG_LINES = 5000
SPIKE = 97.5  # of the loss, at one step

MOST_POINTS = 400  # of a series, where each n-th row is kept
LIMIT_MS = 50
LIMIT_BYTES = 150_000


@dataclass(frozen=True)
class Timing:
    """Milliseconds over repetitions (`cpu_ms`: the median of processor time, which other load on the machine troubles less),
    bytes of the answer as compact JSON, and whether it shows the loss's one spike.
    """

    median_ms: float
    min_ms: float
    max_ms: float
    cpu_ms: float
    bytes: int
    shows_spike: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="metric rows in the run (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=20, help="repetitions, warm (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--once", metavar="RUN_ID", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        from app.pages import run as _  # noqa: F401 - a server has its modules before the first viewer comes

        with database.read() as session:
            runs.listing(session=session)
        print(json.dumps(asdict(measure(lambda: page(arguments.once), 1))))
        return
    with tempfile.TemporaryDirectory(prefix="lathe-benchmark-") as folder:
        os.environ |= {
            "LATHE_DATA_DIR": folder,
            "LATHE_DATABASE_URL": os.environ.get("LATHE_BENCHMARK_DATABASE_URL", ""),
        }
        found = compare(arguments.rows, arguments.repeat)
    print(json.dumps(found) if arguments.json else told(found))


def compare(rows: int, repeat: int) -> dict[str, Any]:
    """Fills the database and measures every way to answer."""
    database.migrate()
    run_id, seconds = fill(rows // STEP_ROWS)
    cold = [once(run_id) for _ in range(5)]
    warm = measure(lambda: page(run_id), repeat)
    naive = measure(lambda: every_nth_row(run_id), 3)
    database.dispose()
    return {
        "rows": rows // STEP_ROWS * STEP_ROWS,
        "database": get_settings().sqlalchemy_url.partition(":")[0],
        "rows_per_second_written": round(rows / seconds),
        "cold": asdict(middle(cold)),
        "warm": asdict(warm),
        "select_all_keep_every_nth": asdict(naive),
        "limits": {"ms": LIMIT_MS, "bytes": LIMIT_BYTES},
        "within_limits": max(warm.median_ms, middle(cold).median_ms) < LIMIT_MS and warm.bytes < LIMIT_BYTES,
    }


def fill(steps: int) -> tuple[str, float]:
    """A run with so many steps, its log and its events. Its id, and the seconds it took to store the metrics."""
    with database.write() as session:
        run = runs.create(session=session, config=RunConfig(model="model", data="data"), dataset_id=None)
        runs.claim(session=session, run_id=run.id, owner="node1:1:1", devices=["node1/cuda:0"], lease_seconds=1e6)
        lines = [
            f"{{'loss': {3 - line / LOG_LINES:.4f}, 'grad_norm': 1.2534, 'epoch': {line / 1000}}}"
            for line in range(LOG_LINES)
        ]
        logs.append(session=session, run_id=run.id, attempt=1, lines=lines, new_offset=1)
    began = time.perf_counter()
    for first in range(0, steps, BATCH_STEPS):
        events = list(reports(range(first, min(steps, first + BATCH_STEPS)), steps))
        with database.write() as session:
            history.apply(session=session, run_id=run.id, attempt=1, events=events, new_offset=first + 1)
    return run.id, time.perf_counter() - began


def reports(steps: range, total: int) -> Iterator[Event]:
    """What a trainer with two ranks reports at these steps."""
    chance = random.Random(steps.start)
    for step in steps:
        now = 1.7e9 + step * 0.731
        loss = SPIKE if step == total // 3 else 2.5 * math.exp(-3 * step / total) + chance.gauss(0.3, 0.05)
        values: tuple[float | None, ...] = (
            loss,
            2e-4 * (1 - step / total),
            abs(chance.gauss(1, 0.3)),
            chance.gauss(5234.5, 99.9),
        )
        yield Metrics(step=step, time=now, values=dict(zip(SERIES, values, strict=True)))
        for rank in range(RANKS):
            memory: dict[str, float | None] = {name: 1.1e10 + chance.randrange(2**30) for name in MEMORY}
            yield Metrics(step=step, time=now, rank=rank, values=memory)
        if step % 500 == 0:
            yield PhaseStarted(phase="saving", time=now)
            yield CheckpointSaved(step=step, path=f"checkpoints/checkpoint-{step}", bytes=123_456_789, time=now)
            yield PhaseStarted(phase="training", time=now)


def page(run_id: str) -> str:
    """What the page of a run sends to a viewer who opens it, with nothing cached: charts, events, log and all."""
    from app.pages import run, run_data

    run_data.forget()
    outputs = run.show(run_id, False, 0.0, run.Sent())
    return json.dumps([one for one in outputs if isinstance(one, (str, dict))], default=str)


def every_nth_row(run_id: str) -> str:
    """The usual way: all rows of each series, of which each n-th is kept."""
    shown = []
    with database.read() as session:
        for name, rank in metrics.latest(session=session, run_id=run_id):
            series = select(Metric.step, Metric.value).where(
                Metric.run_id == run_id, Metric.name == name, Metric.rank == rank
            )
            rows = session.exec(series.order_by(Metric.step)).all()  # type: ignore[arg-type]
            kept = rows[:: max(1, len(rows) // MOST_POINTS)]
            shown.append(
                {"name": name, "rank": rank, "step": [row[0] for row in kept], "value": [row[1] for row in kept]}
            )
    return json.dumps(shown, separators=(",", ":"))


def measure(answer: Callable[[], str], repeat: int) -> Timing:
    """Times an answer in JSON; warm if repeated (one more goes before)."""
    taken, busy, text = [], [], ""
    for _ in range(repeat + (repeat > 1)):
        began, began_busy = time.perf_counter(), time.process_time()
        text = answer()
        taken.append(round((time.perf_counter() - began) * 1000, 1))
        busy.append(round((time.process_time() - began_busy) * 1000, 1))
    taken, busy = taken[-repeat:], busy[-repeat:]
    spike = str(SPIKE) in text
    return Timing(statistics.median(taken), min(taken), max(taken), statistics.median(busy), len(text), spike)


def once(run_id: str) -> Timing:
    """The first answer of a fresh process."""
    command = [sys.executable, "-m", "benchmarks.history", "--once", run_id]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return Timing(**found)


def middle(timings: list[Timing]) -> Timing:
    """One timing for several of one repetition each."""
    taken, busy = [timing.median_ms for timing in timings], [timing.cpu_ms for timing in timings]
    last = timings[-1]
    return Timing(
        statistics.median(taken), min(taken), max(taken), statistics.median(busy), last.bytes, last.shows_spike
    )


def told(found: dict[str, Any]) -> str:
    speed = f"written at {found['rows_per_second_written']:,} rows/s"
    lines = [f"{found['rows']:,} metric rows in a run ({found['database']}), {speed}", ""]
    lines.append(f"{'':28}{'median':>10}{'min':>10}{'max':>10}{'processor':>12}{'payload':>12}   spike of the loss")
    for name in ("cold", "warm", "select_all_keep_every_nth"):
        one = found[name]
        times = (
            "".join(f"{one[key]:>7.1f} ms" for key in ("median_ms", "min_ms", "max_ms")) + f"{one['cpu_ms']:>9.1f} ms"
        )
        lines.append(
            f"{name.replace('_', ' '):28}{times}{one['bytes'] / 1000:>9.1f} kB   {'shown' if one['shows_spike'] else 'lost'}"
        )
    kept = "within" if found["within_limits"] else "NOT within"
    return "\n".join([*lines, "", f"{kept} the limits: {LIMIT_MS} ms and {LIMIT_BYTES / 1000:.0f} kB"])


if __name__ == "__main__":
    main()

"""Measures time and size of the Run page's data for a run with a million metric rows.

    python -m benchmarks.history [--rows 1000000] [--json]

It fills a temporary database with the functions of a supervisor. Then it makes the page's data repeatedly: cold, that is, the
first time in a server process that has only listed runs (nothing of this page is cached or compiled), and warm. For comparison
it measures the usual way: select all rows of a series, and keep every n-th.
"""

import argparse
import gzip
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

from training.config.run_config import RunConfig
from training.run_folder.events import CheckpointSaved, Event, Metrics, PhaseStarted
from worker.settings import get_settings
from worker.store import claims, database, history, run_list, runs, series
from worker.store.tables import Metric

SERIES = ("loss", "learning_rate", "grad_norm", "tokens_per_second")
MEMORY = ("memory_allocated", "memory_reserved", "memory_peak", "host_rss")
RANKS = 2
STEP_ROWS = len(SERIES) + len(MEMORY) * RANKS
BATCH_STEPS = 200
LOG_LINES = 5000
SPIKE = 97.5  # of the loss at one step

MOST_POINTS = 400  # of a series that keeps every n-th row
LIMIT_MS = 50
LIMIT_BYTES = 150_000


@dataclass(frozen=True)
class Timing:
    """Milliseconds over repetitions, bytes of the answer as compact JSON, and True if it shows the loss's one spike.

    `cpu_ms` is the median of processor time, which depends less on other load on the machine.
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
        from app.pages.run import page as _  # noqa: F401 - a server has its modules before the first viewer comes

        with database.read() as session:
            run_list.listing(session=session)
        print(json.dumps(asdict(measure(lambda: page(arguments.once), 1))))
        return
    with tempfile.TemporaryDirectory(prefix="lathe-benchmark-") as folder:
        os.environ |= {
            "LATHE_DATA_DIR": folder,
            "LATHE_DATABASE_URL": os.environ.get("LATHE_BENCHMARK_DATABASE_URL", ""),
        }
        result = compare(arguments.rows, arguments.repeat)
    print(json.dumps(result) if arguments.json else told(result))


def compare(rows: int, repeat: int) -> dict[str, Any]:
    """Fills the database and measures each way."""
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
    """Stores a run with its log and events. Returns its id, and the seconds to store the metrics."""
    with database.write() as session:
        run = runs.create(session=session, config=RunConfig(model="model", data="data"), dataset_id=None)
        claims.claim(session=session, run_id=run.id, owner="node1:1:1", devices=["node1/cuda:0"], lease_seconds=1e6)
        lines = [
            f"{{'loss': {3 - line / LOG_LINES:.4f}, 'grad_norm': 1.2534, 'epoch': {line / 1000}}}"
            for line in range(LOG_LINES)
        ]
        history.append_log(session=session, run_id=run.id, attempt=1, lines=lines, new_offset=1)
    began = time.perf_counter()
    for first in range(0, steps, BATCH_STEPS):
        events = list(reports(range(first, min(steps, first + BATCH_STEPS)), steps))
        with database.write() as session:
            history.apply(session=session, run_id=run.id, attempt=1, events=events, new_offset=first + 1)
    return run.id, time.perf_counter() - began


def reports(steps: range, total: int) -> Iterator[Event]:
    """Returns the records of a trainer with two ranks at these steps."""
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
    """Returns all data of the Run page: its parts as HTML, and the points of its plots."""
    from starlette.datastructures import QueryParams

    from app.documents.live import plots
    from app.pages.run.page import view

    query = QueryParams({"id": run_id})
    parts = view.parts({"query": query, **view.context(query)})
    with database.read() as session:
        drawn = plots.plots(session, runs.get(session=session, run_id=run_id), plots.View())
    return json.dumps([drawn, parts], default=str)


def every_nth_row(run_id: str) -> str:
    """The usual way: selects all rows of each series and keeps every n-th."""
    shown = []
    with database.read() as session:
        for name, rank in series.latest(session=session, run_id=run_id):
            points = select(Metric.step, Metric.value).where(
                Metric.run_id == run_id, Metric.name == name, Metric.rank == rank
            )
            rows = session.exec(points.order_by(Metric.step)).all()  # type: ignore[arg-type]
            thinned = rows[:: max(1, len(rows) // MOST_POINTS)]
            shown.append(
                {"name": name, "rank": rank, "step": [row[0] for row in thinned], "value": [row[1] for row in thinned]}
            )
    return json.dumps(shown, separators=(",", ":"))


def measure(answer: Callable[[], str], repeat: int) -> Timing:
    """Measures an answer as JSON; warm if repeated, after one unmeasured call."""
    taken, busy, text = [], [], ""
    for _ in range(repeat + (repeat > 1)):
        began, began_busy = time.perf_counter(), time.process_time()
        text = answer()
        taken.append(round((time.perf_counter() - began) * 1000, 1))
        busy.append(round((time.process_time() - began_busy) * 1000, 1))
    taken, busy = taken[-repeat:], busy[-repeat:]
    spike = str(SPIKE) in text
    sent = len(gzip.compress(text.encode(), compresslevel=5))  # as the server sends it
    return Timing(statistics.median(taken), min(taken), max(taken), statistics.median(busy), sent, spike)


def once(run_id: str) -> Timing:
    """Measures the first answer of a new process."""
    command = [sys.executable, "-m", "benchmarks.history", "--once", run_id]
    data = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return Timing(**data)


def middle(timings: list[Timing]) -> Timing:
    """Combines several timings of one repetition each."""
    taken, busy = [timing.median_ms for timing in timings], [timing.cpu_ms for timing in timings]
    last = timings[-1]
    return Timing(
        statistics.median(taken), min(taken), max(taken), statistics.median(busy), last.bytes, last.shows_spike
    )


def told(figures: dict[str, Any]) -> str:
    speed = f"written at {figures['rows_per_second_written']:,} rows/s"
    lines = [f"{figures['rows']:,} metric rows in a run ({figures['database']}), {speed}", ""]
    lines.append(f"{'':28}{'median':>10}{'min':>10}{'max':>10}{'processor':>12}{'gzipped':>12}   spike of the loss")
    for name in ("cold", "warm", "select_all_keep_every_nth"):
        item = figures[name]
        times = (
            "".join(f"{item[key]:>7.1f} ms" for key in ("median_ms", "min_ms", "max_ms")) + f"{item['cpu_ms']:>9.1f} ms"
        )
        lines.append(
            f"{name.replace('_', ' '):28}{times}{item['bytes'] / 1000:>9.1f} kB   {'shown' if item['shows_spike'] else 'lost'}"
        )
    verdict = "within" if figures["within_limits"] else "NOT within"
    return "\n".join([*lines, "", f"{verdict} the limits: {LIMIT_MS} ms and {LIMIT_BYTES / 1000:.0f} kB"])


if __name__ == "__main__":
    main()

"""All limits, on each database in turn, and their table."""

import argparse
import os
import statistics
from collections import defaultdict
from typing import Any

from benchmarks.history import STEP_ROWS
from benchmarks.scale.limits import queueing, writing
from benchmarks.scale.limits.databases import installations, use

_SUBMITTED = 100


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians over the repetitions. In each, the databases take turns."""
    found: dict[str, list[dict[str, Any]]] = {"submitting": [], "queue": [], "claiming": [], "writing": []}
    with installations(arguments.databases) as databases:
        taken: dict[tuple[Any, ...], list[tuple[float, ...]]] = defaultdict(list)
        for _ in range(arguments.repeat):
            for name, variables in databases.items():
                use(variables)
                _measure_once(name, arguments, taken)
        for (part, name, size), values in taken.items():
            middle = [statistics.median(column) for column in zip(*values, strict=True)]
            row = dict(zip(_COLUMNS[part], middle, strict=True))
            if part == "claiming":
                row["doubled"] = int(max(value[1] for value in values))
            found[part].append({"database": name, "size": size} | row)
    return found | {"cores": len(os.sched_getaffinity(0)), "repeat": arguments.repeat}


_COLUMNS = {
    "submitting": ("runs_per_second",),
    "queue": ("look_seconds", "claim_seconds", "page_seconds"),
    "claiming": ("runs_per_second", "doubled"),
    "writing": ("rows_per_second", "p95_seconds"),
}


def _measure_once(
    name: str, arguments: argparse.Namespace, taken: dict[tuple[Any, ...], list[tuple[float, ...]]]
) -> None:
    queueing.empty()
    taken["submitting", name, 1].append((queueing.submitted(_SUBMITTED),))
    for queued in sorted(arguments.queued):
        queueing.fill(queued)
        if queued == min(arguments.queued):
            queueing.looks()  # compiles the queries
        one = queueing.looks()
        taken["queue", name, queued].append((one.look, one.claim, one.page))
    queueing.empty()
    queueing.fill(arguments.claims)
    taken["claiming", name, arguments.claimers].append(queueing.claimed_at_once(arguments.claimers, arguments.claims))
    queueing.empty()
    for writers in arguments.writers:
        taken["writing", name, writers].append(writing.stored(writers, arguments.seconds))


def table(found: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{found['cores']} cores; medians of {found['repeat']} repetitions, the databases in turn", ""]
    lines.append(f"{'':52}{'SQLite':>14}{'PostgreSQL':>14}")
    for part, label, column, unit, factor in _ROWS:
        for size in dict.fromkeys(row["size"] for row in found[part]):
            cells = {row["database"]: row[column] * factor for row in found[part] if row["size"] == size}
            values = [f"{cells[name]:,.{1 if unit == 'ms' else 0}f}" if name in cells else "-" for name in _NAMES]
            lines.append(f"{f'{label.format(size)}, {unit}':52}{values[0]:>14}{values[1]:>14}")
    return "\n".join(lines)


_NAMES = ("sqlite", "postgresql")
_ROWS = (
    ("submitting", "runs submitted, one process", "runs_per_second", "runs/s", 1),
    ("queue", "{:,} queued: a worker's look for the next run", "look_seconds", "ms", 1000),
    ("queue", "{:,} queued: a claim", "claim_seconds", "ms", 1000),
    ("queue", "{:,} queued: the query of the page Runs", "page_seconds", "ms", 1000),
    ("claiming", "runs claimed, {} processes compete for each", "runs_per_second", "runs/s", 1),
    ("claiming", "of these claimed twice, {} processes", "doubled", "runs", 1),
    ("writing", "metric rows stored, supervisors: {}", "rows_per_second", "rows/s", 1),
    (
        "writing",
        f"a batch of {writing.STEPS * STEP_ROWS} rows, p95, supervisors: {{}}",
        "p95_seconds",
        "ms",
        1000,
    ),
)

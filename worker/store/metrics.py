"""Stores the metrics of a run, and their rollups; series.py reads them.

A rollup is the mean, minimum and maximum of a bucket of steps, so that a page need not read a long series completely. Level 1
buckets have 16 steps, those of each further level 4 times as many. They are recomputed from the level below in the transaction
that stores the rows, so they stay exact when a resumed run reports steps again.
"""

import math
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import TextClause, bindparam, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session

from worker.store.tables import Metric

WHOLE_RUN = -1  # the rank of metrics of the whole run
BATCH = 1000
LONGEST_NAME = 60


class Point(NamedTuple):
    """One number: `rank` is -1 for the whole run, `time` in seconds since the epoch, NaN and infinities become null."""

    name: str
    rank: int
    step: int
    time: float
    value: float | None


def add(*, session: Session, run_id: str, points: list[Point]) -> None:
    """Stores points, replacing those with the same name, rank and step, and updates the rollups."""
    if not points:
        return
    # If a step appears twice, the last counts; PostgreSQL refuses both in one statement.
    rows = list({row[:3]: _row(run_id, row) for row in map(_storable, points)}.values())
    statement = _upsert(session.get_bind().dialect.name)
    for start in range(0, len(rows), BATCH):
        session.connection().execute(statement, rows[start : start + BATCH])
    names, ranks, steps = ({row[key] for row in rows} for key in ("name", "rank", "step"))
    roll_up(session=session, run_id=run_id, names=names, ranks=ranks, steps=range(min(steps), max(steps) + 1))


@cache
def _upsert(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement = sqlite.insert(Metric) if dialect == "sqlite" else postgresql.insert(Metric)
    replaced = {"time": statement.excluded.time, "value": statement.excluded.value}
    return statement.on_conflict_do_update(index_elements=["run_id", "name", "rank", "step"], set_=replaced)


def _storable(point: Point) -> Point:
    finite = point.value is not None and math.isfinite(point.value)
    return point._replace(name=point.name[:LONGEST_NAME], value=point.value if finite else None)


def _row(run_id: str, point: Point) -> dict[str, Any]:
    return {"run_id": run_id, **point._asdict()}


FIRST_BUCKET = 16
FACTOR = 4
LEVELS = 7


# Text that is built once: a live run's supervisor executes these for every small batch.
_INTO = """
    INSERT INTO metric_rollup (run_id, name, rank, level, bucket, step, time, count, mean, low, high)
"""
_REPLACED = """
    ON CONFLICT (run_id, name, rank, level, bucket) DO UPDATE SET step = excluded.step, time = excluded.time,
        count = excluded.count, mean = excluded.mean, low = excluded.low, high = excluded.high
"""
_OF_ROWS = """
    SELECT run_id, name, rank, :level, step / :size,
        max(step), max(time), count(value), avg(value), min(value), max(value)
    FROM metric
    WHERE run_id = :run_id AND name IN :names AND rank IN :ranks AND step BETWEEN :first AND :last
    GROUP BY 1, 2, 3, 5
"""
_OF_ROLLUPS = """
    SELECT run_id, name, rank, :level, bucket / :size,
        max(step), max(time), sum(count), sum(mean * count) / nullif(sum(count), 0), min(low), max(high)
    FROM metric_rollup
    WHERE run_id = :run_id AND name IN :names AND rank IN :ranks AND level = :below AND bucket BETWEEN :first AND :last
    GROUP BY 1, 2, 3, 5
"""


def _statement(source: str) -> TextClause:
    return text(_INTO + source + _REPLACED).bindparams(
        bindparam("names", expanding=True), bindparam("ranks", expanding=True)
    )


_ROLL_UP_ROWS, _ROLL_UP_ROLLUPS = _statement(_OF_ROWS), _statement(_OF_ROLLUPS)


def bucket_steps(level: int) -> int:
    """The steps in a bucket of this level; level 0 is the rows themselves."""
    return FIRST_BUCKET * int(FACTOR ** (level - 1)) if level else 1


def roll_up(*, session: Session, run_id: str, names: set[str], ranks: set[int], steps: range) -> None:
    """Updates every level for rows of these series that changed within `steps`."""
    series = {"run_id": run_id, "names": list(names), "ranks": list(ranks)}
    for level in range(1, LEVELS + 1):
        size = FIRST_BUCKET if level == 1 else FACTOR  # of the level below in a bucket of this one
        first, last = (step // bucket_steps(level) * size for step in (steps[0], steps[-1]))
        values = series | {"level": level, "size": size, "first": first, "last": last + size - 1}
        if level == 1:
            session.connection().execute(_ROLL_UP_ROWS, values)
        else:
            session.connection().execute(_ROLL_UP_ROLLUPS, values | {"below": level - 1})

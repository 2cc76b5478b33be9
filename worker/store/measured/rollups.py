"""Rollups: mean, minimum and maximum per bucket of steps, so that a page need not read a long series completely.

Level 1 buckets have 16 steps, those of each further level 4 times as many. They are recomputed from the level below in the
transaction that stores the rows, so they stay exact when a resumed run reports steps again.
"""

from typing import Any

from sqlalchemy import ColumnElement, Integer, TextClause, bindparam, func, literal_column, text
from sqlmodel import Session, SQLModel

from worker.store.tables import Metric, MetricRollup

FIRST_BUCKET = 16
FACTOR = 4
LEVELS = 7

ROWS = SQLModel.metadata.tables[str(Metric.__tablename__)].c
ROLLUPS = SQLModel.metadata.tables[str(MetricRollup.__tablename__)].c

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


def of_rows() -> list[ColumnElement[Any]]:
    """For a group of rows: last step, its time, number of values, mean, minimum and maximum."""
    value = ROWS.value
    return [
        func.max(ROWS.step),
        func.max(ROWS.time),
        func.count(value),
        func.avg(value),
        func.min(value),
        func.max(value),
    ]


def of_rollups() -> list[ColumnElement[Any]]:
    """For a group of rollups: the same, over all rows below them."""
    count = func.sum(ROLLUPS.count)
    mean = func.sum(ROLLUPS.mean * ROLLUPS.count) / func.nullif(count, 0)
    return [func.max(ROLLUPS.step), func.max(ROLLUPS.time), count, mean, func.min(ROLLUPS.low), func.max(ROLLUPS.high)]


def number(value: int) -> ColumnElement[int]:
    """A literal number: PostgreSQL does not recognize two equal parameters in GROUP BY."""
    return literal_column(str(int(value)), Integer)

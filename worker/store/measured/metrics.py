"""Stores the metrics of a run; rollups.py summarizes them, series.py reads them."""

import math
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session

from worker.store.measured.rollups import roll_up
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

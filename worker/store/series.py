"""Reads metric series thinned for a page: every series in points of the same number of steps, over the whole range.

A spike stays visible in `low` and `high` in runs of any length.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Select, func, literal_column, select, union_all
from sqlmodel import Session, SQLModel

from worker.store.metrics import LEVELS, Point, bucket_steps
from worker.store.tables import Metric, MetricRollup

Key = tuple[str, int]  # name, rank
_ROWS = SQLModel.metadata.tables[str(Metric.__tablename__)].c
_ROLLUPS = SQLModel.metadata.tables[str(MetricRollup.__tablename__)].c


@dataclass
class Series:
    """A series thinned to points of `width` steps each: parallel lists in the order of steps.

    A point is a row or a bucket of rows: `value` is their mean (null for NaN or infinity), `low` and `high` are their
    extremes, `step` and `time` the last row's. `low` and `high` are None if both equal `value` at every point. `last_rows` is
    the number of rows in the last point.
    """

    name: str
    rank: int
    step: list[int] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    value: list[float | None] = field(default_factory=list)
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    width: int = 1
    last_rows: int = 1


class Extent(NamedTuple):
    """The number of rows of a series, and its first and last step."""

    rows: int
    first_step: int
    last_step: int


class SeriesPart(NamedTuple):
    """Steps from `first` up to `end`, one point per `group` buckets of `level` (0: rows)."""

    level: int
    group: int
    first: int
    end: int

    @property
    def width(self) -> int:
        """Steps of a point."""
        return bucket_steps(self.level) * self.group


def series(
    *,
    session: Session,
    run_id: str,
    names: Collection[str] | None = None,
    points: int = 400,
    first_step: int | None = None,
    last_step: int | None = None,
    ranks: Collection[int] | None = None,
    width: int | None = None,
) -> list[Series]:
    """The run's series from `first_step` to `last_step`, by name and rank, in at most about `points` points each.

    All have points of the same number of steps: `width` where it is given, as an earlier answer had it. Those at both ends can
    cover steps outside the range, where they are rollups. A point covers steps from a multiple of its width.
    """
    known = extents(session=session, run_id=run_id)
    chosen = {
        key: extent
        for key, extent in known.items()
        if (names is None or key[0] in names) and (ranks is None or key[1] in ranks)
    }
    if not chosen:
        return []
    first = max(first_step or 0, min(extent.first_step for extent in chosen.values()))
    last = max(extent.last_step for extent in chosen.values())
    end = 1 + (last if last_step is None else min(last, last_step))
    if first >= end:
        return []
    if width is None:
        part = _part(first, end, points, rows=max(extent.rows for extent in chosen.values()))
    else:
        part = _part_of_width(first, end, width)
    read = _read(session, run_id, dict.fromkeys(chosen, part))
    found = sorted(read, key=itemgetter(0, 1, 2))
    return [_series(name, rank, part.width, list(rows)) for (name, rank), rows in groupby(found, key=itemgetter(0, 1))]


def latest(*, session: Session, run_id: str) -> dict[Key, tuple[int, float | None]]:
    """The last step of every series with its value, by name and rank."""
    last = {key: extent.last_step for key, extent in extents(session=session, run_id=run_id).items()}
    plans = {key: SeriesPart(0, 1, step, step + 1) for key, step in last.items()}
    return {(name, rank): (step, value) for name, rank, step, _, _, value, _, _ in _read(session, run_id, plans)}


def extents(*, session: Session, run_id: str) -> dict[Key, Extent]:
    """What series there are, by the coarsest rollups: few rows a series."""
    first = func.min(_ROLLUPS.bucket) * bucket_steps(LEVELS)
    statement = (
        select(_ROLLUPS.name, _ROLLUPS.rank, func.sum(_ROLLUPS.count), first, func.max(_ROLLUPS.step))
        .where(_ROLLUPS.run_id == run_id, _ROLLUPS.level == LEVELS)
        .group_by(_ROLLUPS.name, _ROLLUPS.rank)
    )
    found = session.connection().execute(statement).all()
    return {(name, rank): Extent(int(rows), start, last) for name, rank, rows, start, last in found}


def rows_after(*, session: Session, run_id: str, after: dict[Key, int]) -> list[Point]:
    """The rows of each given series after a step, by step."""
    names, ranks = {name for name, _ in after}, {rank for _, rank in after}
    where = [_ROWS.run_id == run_id, _ROWS.name.in_(names), _ROWS.rank.in_(ranks), _ROWS.step > min(after.values())]
    columns = (_ROWS.name, _ROWS.rank, _ROWS.step, _ROWS.time, _ROWS.value)
    found = session.connection().execute(select(*columns).where(*where).order_by(_ROWS.step)).all()
    points = [Point(*row) for row in found]
    return [point for point in points if point.step > after.get((point.name, point.rank), point.step)]


def _part(first: int, end: int, points: int, rows: int) -> SeriesPart:
    """The finest points that are few enough; single rows if the whole series has few."""
    return _part_of_width(first, end, 1 if rows <= points else math.ceil((end - first) / points))


def _part_of_width(first: int, end: int, width: int) -> SeriesPart:
    """Points of at least `width` steps."""
    level = max(level for level in range(LEVELS + 1) if bucket_steps(level) <= width)
    return SeriesPart(level, math.ceil(width / bucket_steps(level)), first, end)


def _read(session: Session, run_id: str, plans: dict[Key, SeriesPart]) -> list[Any]:
    """Rows of (name, rank, step, time, count, value, low, high), unsorted. Series with the same part share a SELECT."""
    alike: dict[SeriesPart, set[Key]] = {}
    for key, part in plans.items():
        alike.setdefault(part, set()).add(key)
    selects = [
        _select(run_id, part, {name for name, _ in keys}, {rank for _, rank in keys}) for part, keys in alike.items()
    ]
    found = list(session.connection().execute(union_all(*selects)).all()) if selects else []
    return [row for row in found if (row[0], row[1]) in plans]


def _select(run_id: str, part: SeriesPart, names: Collection[str], ranks: Collection[int]) -> Select[Any]:
    table, place = (_ROLLUPS, _ROLLUPS.bucket) if part.level else (_ROWS, _ROWS.step)
    size = bucket_steps(part.level)
    chosen = [table.run_id == run_id, table.name.in_(names), table.rank.in_(ranks)]
    chosen += [place.between(part.first // size, (part.end - 1) // size)]
    chosen += [_ROLLUPS.level == part.level] if part.level else []
    if part.group > 1:
        groups = _of_rollups() if part.level else _of_rows()
        grouped = select(table.name, table.rank, *groups).where(*chosen)
        return grouped.group_by(table.name, table.rank, place // _number(part.group))
    rolled = (_ROLLUPS.count, _ROLLUPS.mean, _ROLLUPS.low, _ROLLUPS.high)
    values = rolled if part.level else (_number(1), _ROWS.value, _ROWS.value, _ROWS.value)
    return select(table.name, table.rank, table.step, table.time, *values).where(*chosen)


def _of_rows() -> list[ColumnElement[Any]]:
    """For a group of rows: last step, its time, number of values, mean, minimum and maximum."""
    value = _ROWS.value
    return [
        func.max(_ROWS.step),
        func.max(_ROWS.time),
        func.count(value),
        func.avg(value),
        func.min(value),
        func.max(value),
    ]


def _of_rollups() -> list[ColumnElement[Any]]:
    """For a group of rollups: the same, over all rows below them."""
    count = func.sum(_ROLLUPS.count)
    mean = func.sum(_ROLLUPS.mean * _ROLLUPS.count) / func.nullif(count, 0)
    return [
        func.max(_ROLLUPS.step),
        func.max(_ROLLUPS.time),
        count,
        mean,
        func.min(_ROLLUPS.low),
        func.max(_ROLLUPS.high),
    ]


def _number(value: int) -> ColumnElement[int]:
    """A literal number: PostgreSQL does not recognize two equal parameters in GROUP BY."""
    return literal_column(str(int(value)), Integer)


def _series(name: str, rank: int, width: int, rows: list[Any]) -> Series:
    _, _, step, time, count, value, low, high = (list(column) for column in zip(*rows, strict=True))
    single = value == low == high
    return Series(name, rank, step, time, value, None if single else low, None if single else high, width, count[-1])

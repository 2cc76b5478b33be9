"""Reads metric series, thinned for a page: coarse rollups for old steps, finer ones and then rows for recent steps.

A spike stays visible in `low` and `high` in runs of any length.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select, union_all
from sqlmodel import Session

from worker.store.rollups import LEVELS, ROLLUPS, ROWS, bucket_steps, number, of_rollups, of_rows

RECENT_SHARE = 4  # a quarter of the points are the latest rows
COARSEST = 3  # a level is fine enough if it fills a third of the points

Key = tuple[str, int]  # name, rank


@dataclass
class Series:
    """A series thinned to about the requested number of points: parallel lists in the order of steps.

    A point is a row or a bucket of rows: `value` is their mean (null for NaN or infinity), `low` and `high` are their
    extremes, `step` and `time` the last row's. `low` and `high` are None if both equal `value` at every point.
    """

    name: str
    rank: int
    step: list[int] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    value: list[float | None] = field(default_factory=list)
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Extent(NamedTuple):
    """The number of rows of a series, and its first and last step."""

    rows: int
    first_step: int
    last_step: int

    @property
    def density(self) -> float:
        """Rows per step."""
        return self.rows / (self.last_step - self.first_step + 1)


class Part(NamedTuple):
    """Steps from `first` up to `end`, one point per `group` buckets of `level` (0: rows)."""

    level: int
    group: int
    first: int
    end: int


def series(
    *,
    session: Session,
    run_id: str,
    names: Collection[str] | None = None,
    points: int = 400,
    first_step: int | None = None,
    last_step: int | None = None,
) -> list[Series]:
    """The run's series with rows from `first_step` to `last_step`, by name and rank, each in about `points` points."""
    plans: dict[Key, list[Part]] = {}
    for key, extent in extents(session=session, run_id=run_id).items():
        first, end = max(first_step or 0, extent.first_step), extent.last_step + 1
        if last_step is not None:
            end = min(end, last_step + 1)
        if first < end and (names is None or key[0] in names):
            plans[key] = list(_plan(extent, first, end, points))
    found = sorted(_read(session, run_id, plans), key=itemgetter(0, 1, 2))
    return [_series(name, rank, list(rows)) for (name, rank), rows in groupby(found, key=itemgetter(0, 1))]


def latest(*, session: Session, run_id: str) -> dict[Key, tuple[int, float | None]]:
    """The last step of every series with its value, by name and rank."""
    last = {key: extent.last_step for key, extent in extents(session=session, run_id=run_id).items()}
    plans = {key: [Part(0, 1, step, step + 1)] for key, step in last.items()}
    return {(name, rank): (step, value) for name, rank, step, _, value, _, _ in _read(session, run_id, plans)}


def extents(*, session: Session, run_id: str) -> dict[Key, Extent]:
    """What series there are, by the coarsest rollups: few rows a series."""
    first = func.min(ROLLUPS.bucket) * bucket_steps(LEVELS)
    statement = (
        select(ROLLUPS.name, ROLLUPS.rank, func.sum(ROLLUPS.count), first, func.max(ROLLUPS.step))
        .where(ROLLUPS.run_id == run_id, ROLLUPS.level == LEVELS)
        .group_by(ROLLUPS.name, ROLLUPS.rank)
    )
    found = session.connection().execute(statement).all()
    return {(name, rank): Extent(int(rows), start, last) for name, rank, rows, start, last in found}


def _plan(extent: Extent, first: int, end: int, points: int) -> Iterator[Part]:
    """The parts to read: each level up to its last full bucket, then the next finer level, and rows at the end."""
    if extent.density * (end - first) <= points:
        yield Part(0, 1, first, end)
        return
    recent = points // RECENT_SHARE
    cut = max(first, end - math.ceil(recent / extent.density))
    wanted = points - recent
    coarse = max(
        level for level in range(LEVELS + 1) if not level or (cut - first) / bucket_steps(level) * COARSEST >= wanted
    )
    group = max(1, math.ceil((cut - first) / bucket_steps(coarse) / wanted))
    for level in range(coarse, -1, -1):
        width = bucket_steps(level) * group
        until = cut // width * width
        if until > first:
            yield Part(level, group, first, until)
            first = until
        group = 1
    yield Part(0, 1, first, end)


def _read(session: Session, run_id: str, plans: dict[Key, list[Part]]) -> list[Any]:
    """Rows of (name, rank, step, time, value, low, high), unsorted. Series with the same parts share a SELECT."""
    ranks: defaultdict[tuple[Part, str], list[int]] = defaultdict(list)
    for (name, rank), parts in plans.items():
        for part in parts:
            ranks[part, name].append(rank)
    names: defaultdict[tuple[Part, tuple[int, ...]], list[str]] = defaultdict(list)
    for (part, name), listed in ranks.items():
        names[part, tuple(listed)].append(name)
    selects = [_select(run_id, part, alike, listed) for (part, listed), alike in names.items()]
    return list(session.connection().execute(union_all(*selects)).all()) if selects else []


def _select(run_id: str, part: Part, names: list[str], ranks: Collection[int]) -> Select[Any]:
    table, place = (ROLLUPS, ROLLUPS.bucket) if part.level else (ROWS, ROWS.step)
    size = bucket_steps(part.level)
    chosen = [table.run_id == run_id, table.name.in_(names), table.rank.in_(ranks)]
    chosen += [place.between(part.first // size, (part.end - 1) // size)]
    chosen += [ROLLUPS.level == part.level] if part.level else []
    if part.group > 1:
        step, time, _, mean, low, high = of_rollups() if part.level else of_rows()
        grouped = select(table.name, table.rank, step, time, mean, low, high).where(*chosen)
        return grouped.group_by(table.name, table.rank, place // number(part.group))
    values = (ROLLUPS.mean, ROLLUPS.low, ROLLUPS.high) if part.level else (ROWS.value, ROWS.value, ROWS.value)
    return select(table.name, table.rank, table.step, table.time, *values).where(*chosen)


def _series(name: str, rank: int, rows: list[Any]) -> Series:
    _, _, step, time, value, low, high = (list(column) for column in zip(*rows, strict=True))
    single = value == low == high
    return Series(name, rank, step, time, value, None if single else low, None if single else high)

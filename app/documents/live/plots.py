"""What a run's plots draw: its metrics as columns on an axis, panels, and marks of events, as compact JSON."""

import gzip
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from sqlmodel import Session

from app.documents.live.panels import is_drawn, is_summed_up, line_key, panels
from app.documents.live.positions import Positions, marks, positions
from worker.store import database, history, runs, series
from worker.store.series import Series
from worker.store.tables import Run

EVENTS = 100
_RANK_POINTS, _FEWEST_POINTS = 2400, 100  # of all lines of ranks together; of one

Column = list[float | None]


@dataclass(frozen=True)
class View:
    """The part of the plots to draw: from `start` to `end` on `axis` (None: to its ends), and single ranks of summed up lines."""

    axis: str = "step"
    start: float | None = None
    end: float | None = None
    points: int = 400
    ranks: tuple[int, ...] = ()


def packed(run_id: str, view: View) -> bytes:
    """The plots as gzipped JSON. All viewers of a view share one reading of the database per state of the run.

    Raises:
        RunNotFound: no run has this id.
    """
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
    return _packed(run_id, view, (run.attempt, run.event_offset, run.status.value))


@lru_cache(maxsize=64)
def _packed(run_id: str, view: View, state: tuple[Any, ...]) -> bytes:  # noqa: ARG001 the state is part of the key
    with database.read() as session:
        document = plots(session, runs.get(session=session, run_id=run_id), view)
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), compresslevel=5)


def plots(session: Session, run: Run, view: View) -> dict[str, Any]:
    """`panels`, `lines` (columns by key), `axes` to choose from, `marks`, and `width`: the steps of a point.

    Values have six significant digits. See static/plots.js for the format.
    """
    places = positions(session, run)
    axis = view.axis if view.axis in places.axes else "step"
    ranks = ranks_of(session, run)
    limits = [None if place is None else places.step_at(axis, place) for place in (view.start, view.end)]
    first = None if limits[0] is None else math.floor(limits[0])
    last = None if limits[1] is None else math.ceil(limits[1])
    span: dict[str, Any] = {"session": session, "run_id": run.id, "first_step": first, "last_step": last}
    whole_run = [name for name in ranks if ranks[name][0] < 0]
    general = series.series(names=whole_run, points=view.points, **span)
    lines = {line_key(line.name, line.rank): _columns(line, places, axis) for line in general}
    lines |= _of_ranks(span, {name: of for name, of in ranks.items() if of[0] >= 0}, view, places, axis)
    evaluations = next((line.step for line in general if line.name == "eval_loss"), [])
    events = history.events(session=session, run_id=run.id, limit=EVENTS)
    return {
        "width": general[0].width if general else 1,
        "axes": places.axes,
        "panels": panels(ranks, memory_limits(run)),
        "marks": marks(places, events, evaluations, run.started_at or 0.0),
        "lines": lines,
    }


def ranks_of(session: Session, run: Run) -> dict[str, list[int]]:
    """The ranks of each metric that has a plot."""
    extents = series.extents(session=session, run_id=run.id)
    drawn = sorted(key for key in extents if is_drawn(key[0]))
    return {name: sorted(rank for _, rank in keys) for name, keys in groupby(drawn, key=lambda key: key[0])}


def memory_limits(run: Run) -> list[dict[str, Any]]:
    """The lines in the memory plot: the predicted peak of tensors, and the GPU's memory or the run's memory limit."""
    forecast = run.forecast or {}
    limited = run.config.get("memory_limit") is not None
    on_gpu = forecast.get("card") not in (None, "cpu")
    listed = [
        ("predicted peak", forecast.get("allocated_bytes"), "--chart-2"),
        ("memory limit" if limited or not on_gpu else "GPU memory", forecast.get("limit_bytes"), "--red"),
    ]
    return [{"label": label, "value": value, "color": color} for label, value, color in listed if value]


def rounded(values: Iterable[float | None]) -> Column:
    """The values with six significant digits; null for NaN and infinity."""
    return [None if value is None or not math.isfinite(value) else _six(value) for value in values]


def summed_up(lines: Sequence[Series]) -> tuple[list[int], Column, Column, Column]:
    """Steps of points with median, minimum and maximum over ranks; a rank without a row in a point keeps its last value."""
    width = lines[0].width
    buckets = sorted({step // width for line in lines for step in line.step})
    place = {bucket: index for index, bucket in enumerate(buckets)}
    middle, low, high = (np.full((len(lines), len(buckets)), np.nan) for _ in range(3))
    last = np.zeros(len(buckets), dtype=int)
    for number, line in enumerate(lines):
        at = [place[step // width] for step in line.step]
        for table, column in ((middle, line.value), (low, line.low or line.value), (high, line.high or line.value)):
            table[number, at] = np.asarray(column, dtype=float)
        np.maximum.at(last, at, line.step)
    middle, low, high = (_filled(table) for table in (middle, low, high))
    columns = (np.nanmedian(middle, axis=0), np.nanmin(low, axis=0), np.nanmax(high, axis=0))
    return last.tolist(), *(rounded(column.tolist()) for column in columns)  # type: ignore[return-value]


def _of_ranks(
    span: dict[str, Any], ranks: dict[str, list[int]], view: View, places: Positions, axis: str
) -> dict[str, Any]:
    """The lines of single ranks, and those that sum up many ranks. Many ranks have fewer points each."""
    count = sum(len(of) for of in ranks.values())
    points = max(_FEWEST_POINTS, min(view.points, _RANK_POINTS // max(count, 1)))
    read = series.series(names=list(ranks), points=points, **span)
    lines: dict[str, Any] = {}
    for name, group in groupby(read, key=lambda line: line.name):
        alike = list(group)
        if is_summed_up(ranks[name]):
            steps, middle, low, high = summed_up(alike)
            lines[name] = _document(steps, places, axis, middle, low, high) | {"width": alike[0].width}
            alike = [line for line in alike if line.rank in view.ranks]
        lines |= {line_key(name, line.rank): _columns(line, places, axis) for line in alike}
    return lines


def _columns(line: Series, places: Positions, axis: str) -> dict[str, Any]:
    low, high = (None if column is None else rounded(column) for column in (line.low, line.high))
    document = _document(line.step, places, axis, rounded(line.value), low, high)
    return document | {"width": line.width, "count": line.last_rows}


def _document(
    steps: Collection[int], places: Positions, axis: str, value: Column, low: Column | None, high: Column | None
) -> dict[str, Any]:
    x = list(steps) if axis == "step" else [_nine(place) for place in places.of_steps(axis, steps).tolist()]
    bounds = {} if low is None or high is None else {"low": low, "high": high}
    return {"x": x, "y": value, **bounds, "step": max(steps)}


def _filled(table: Any) -> Any:
    """The table with each gap filled from the left, and at the left edge from the right."""
    known = ~np.isnan(table)
    index = np.where(known, np.arange(table.shape[1]), 0)
    np.maximum.accumulate(index, axis=1, out=index)
    filled = np.take_along_axis(table, index, axis=1)
    first = table[np.arange(len(table)), known.argmax(axis=1)]
    return np.where(np.isnan(filled), first[:, None], filled)


def _six(value: float) -> float:
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) else short


def _nine(value: float) -> float:
    """A place on an axis; tokens need more digits than values."""
    short = float(f"{value:.9g}")
    return int(short) if short == int(short) else short

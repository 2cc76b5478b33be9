"""What a run's plots draw: its metrics as columns on an axis, panels, and marks of events, as compact JSON."""

import gzip
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session

from app.documents.live.panels import is_drawn, is_summed_up, line_key, panels
from worker.store import database, history, runs, series
from worker.store.series import Series
from worker.store.tables import Run, RunEvent

Axis = Literal["step", "tokens", "epoch", "time"]
AXES: tuple[Axis, ...] = get_args(Axis)
_POINTS = 2000
_MARKED = ("checkpoint", "resumed", "out_of_memory", "stop", "stopped", "failed", "requeued")
_MOST_EVALUATIONS = 60

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Positions:
    """Steps, ascending, and their places on the other axes that the run has reported."""

    step: Numbers
    others: dict[str, Numbers]

    @property
    def axes(self) -> list[str]:
        """The axes to choose from."""
        return [axis for axis in AXES if axis == "step" or axis in self.others]

    def of_steps(self, axis: str, steps: Iterable[float]) -> Numbers:
        """The places of steps on an axis."""
        wanted = np.asarray(list(steps), dtype=float)
        return wanted if axis == "step" else np.interp(wanted, self.step, self.others[axis])

    def step_at(self, axis: str, place: float) -> float:
        """The step at a place on an axis."""
        return place if axis == "step" else float(np.interp(place, self.others[axis], self.step))

    def everywhere(self, step: float) -> dict[str, float]:
        """The place of a step on each axis."""
        return {axis: _short(float(self.of_steps(axis, [step])[0])) for axis in self.axes}


def positions(session: Session, run: Run) -> Positions:
    """The places of the run's steps, from its metrics `tokens` and `epoch` and the times of its losses."""
    lines = {
        line.name: line
        for line in series.series(session=session, run_id=run.id, names=("loss", "tokens", "epoch"), points=_POINTS)
    }
    if "loss" not in lines:
        return Positions(np.zeros(0), {})
    loss = lines["loss"]
    start = run.started_at or loss.time[0]
    steps = np.asarray(loss.step, dtype=float)
    others = {"time": np.maximum.accumulate(np.maximum(np.asarray(loss.time) - start, 0.0))}
    for name in ("tokens", "epoch"):
        if name in lines:
            others[name] = np.interp(steps, lines[name].step, _ends(lines[name]))
    return Positions(steps, others)


def marks(
    places: Positions, events: Sequence[RunEvent], evaluations: Sequence[int], start: float
) -> list[dict[str, object]]:
    """Events and evaluations with their places. An event without a step has the place of its time."""
    if not len(places.step):
        return []
    listed = [
        (
            event.kind,
            event.message,
            event.step if event.step is not None else places.step_at("time", event.time - start),
        )
        for event in events
        if event.kind in _MARKED
    ]
    if len(evaluations) <= _MOST_EVALUATIONS:
        listed += [("evaluation", f"Evaluation after step {step:,}.", step) for step in evaluations]
    return [{"kind": kind, "text": text, "at": places.everywhere(step)} for kind, text, step in listed]


def _ends(line: Series) -> list[float]:
    """The last value of each point of a series that never falls: its highest."""
    return [float(value or 0) for value in line.high or line.value]


def _short(place: float) -> float:
    return int(place) if place == int(place) else round(place, 3)


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
    """The ranks of each metric that has a plot; none if the run ended before its first step, whose plots would be single points."""
    if run.status.ended and not run.step:
        return {}
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

"""The metrics of several runs as lines on one axis, for the plots of the page Compare."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from sqlmodel import Session

from app.documents import Document
from app.documents.comparison.document import check_number
from app.documents.live.plots import Axis, Positions, positions, rounded, summed_up
from app.format.run_text import has_rewards
from worker.store import runs, series
from worker.store.series import Series
from worker.store.tables import Run

_METRICS = ("loss", "learning_rate", "grad_norm", "tokens_per_second")
_EVALUATED, _REWARDED = ("eval_loss",), ("reward", "eval_reward")  # by what a run is evaluated
_MEMORY = ("memory_peak", "host_rss")  # of a device; on CPU, of the process
_MOST_POINTS, _FEWEST_POINTS = (
    8000,
    50,
)  # of a metric of all runs, so that 50 runs are sent and drawn quickly; of one run


class View(NamedTuple):
    """What the plots show: from `start` to `end` on the axis, about `points` points a line.

    With `first_step` and `width` only the end of the lines: points of `width` steps, as an earlier answer had them.
    """

    axis: Axis
    start: float | None = None
    end: float | None = None
    points: int = 400
    first_step: int | None = None
    width: int | None = None


class PlotLine(Document):
    """A metric of a run: places on the axis, values, and the extremes of each point (null if they equal the values).

    `step` is the last one of the last point, `width` the number of steps that a point covers.
    """

    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    step: int
    width: int


class Lines(Document):
    """The metrics of runs by RUN/METRIC."""

    lines: dict[str, PlotLine]


def plotted(session: Session, ids: Sequence[str], view: View) -> dict[str, PlotLine]:
    """Lines of x, y, low and high by `RUN/METRIC`; `memory` is that of the rank with the most. None of runs without this axis.

    `step` is the last point's last step, `width` the steps of a point.

    Raises:
        RunNotFound: an id is of no run.
        TooManyRuns: there are more than 50 ids.
    """
    check_number(ids)
    few = min(view.points, max(_MOST_POINTS // max(len(ids), 1), _FEWEST_POINTS))
    lines: dict[str, PlotLine] = {}
    for run in [runs.get(session=session, run_id=run_id) for run_id in ids]:
        lines |= _run_lines(session, run, view._replace(points=few))
    return lines


def _run_lines(session: Session, run: Run, view: View) -> dict[str, PlotLine]:
    places = positions(session, run)
    if view.axis not in places.axes:
        return {}
    first, last = (None if place is None else places.step_at(view.axis, place) for place in (view.start, view.end))
    found = series.series(
        session=session,
        run_id=run.id,
        names=(*_METRICS, *(_REWARDED if has_rewards(run) else _EVALUATED), *_MEMORY),
        points=view.points,
        first_step=view.first_step if first is None else math.floor(first),
        last_step=None if last is None else math.ceil(last),
        width=view.width,
    )
    lines = {f"{run.id}/{line.name}": _line(line, places, view.axis) for line in found if line.rank < 0}
    if memory := _fullest(found):
        steps, highest = memory
        x = _x(steps, places, view.axis)
        lines[f"{run.id}/memory"] = PlotLine(x=x, y=highest, step=steps[-1], width=found[0].width)
    return lines


def _fullest(found: Sequence[Series]) -> tuple[list[int], list[float | None]] | None:
    """The steps and the largest memory of any rank at each; of devices if they reported it."""
    by_name = {name: list(ranks) for name, ranks in groupby(found, key=lambda line: line.name) if name in _MEMORY}
    for name in _MEMORY:
        ranks = by_name.get(name, [])
        if any(any(line.value) for line in ranks):
            steps, _, _, highest = summed_up(ranks)
            return steps, highest
    return None


def _line(line: Series, places: Positions, axis: Axis) -> PlotLine:
    low, high = (None if column is None else rounded(column) for column in (line.low, line.high))
    x = _x(line.step, places, axis)
    return PlotLine(x=x, y=rounded(line.value), low=low, high=high, step=line.step[-1], width=line.width)


def _x(steps: Sequence[int], places: Positions, axis: Axis) -> list[float]:
    return [float(f"{place:.9g}") for place in places.of_steps(axis, steps).tolist()]

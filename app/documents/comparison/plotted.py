"""The metrics of several runs as lines on one axis, for the plots of the page Compare."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

from sqlmodel import Session

from app.documents.comparison.document import check_number
from app.documents.live.plots import rounded, summed_up
from app.documents.live.positions import Positions, positions
from worker.store import runs
from worker.store.measured import series
from worker.store.measured.series import Series
from worker.store.tables import Run

Axis = Literal["step", "tokens", "epoch", "time"]
Line = dict[str, Any]

_METRICS = ("loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_second")
_MEMORY = ("memory_peak", "host_rss")  # of a device; on CPU, of the process
_MOST_POINTS, _FEWEST_POINTS = (
    8000,
    50,
)  # of a metric of all runs, so that 50 runs are sent and drawn quickly; of one run


def plotted(
    session: Session, ids: Sequence[str], *, axis: Axis, start: float | None, end: float | None, points: int
) -> dict[str, Line]:
    """Lines of x, y, low and high by `RUN/METRIC`; `memory` is that of the rank with the most. None of runs without this axis.

    Raises:
        RunNotFound: an id is of no run.
        TooManyRuns: there are more than 50 ids.
    """
    check_number(ids)
    few = min(points, max(_MOST_POINTS // max(len(ids), 1), _FEWEST_POINTS))
    lines: dict[str, Line] = {}
    for run in [runs.get(session=session, run_id=run_id) for run_id in ids]:
        lines |= _run_lines(session, run, axis, start, end, few)
    return lines


def _run_lines(
    session: Session, run: Run, axis: Axis, start: float | None, end: float | None, points: int
) -> dict[str, Line]:
    places = positions(session, run)
    if axis not in places.axes:
        return {}
    first, last = (None if place is None else places.step_at(axis, place) for place in (start, end))
    found = series.series(
        session=session,
        run_id=run.id,
        names=(*_METRICS, *_MEMORY),
        points=points,
        first_step=None if first is None else math.floor(first),
        last_step=None if last is None else math.ceil(last),
    )
    lines = {f"{run.id}/{line.name}": _line(line, places, axis) for line in found if line.rank < 0}
    if memory := _fullest(found):
        steps, highest = memory
        lines[f"{run.id}/memory"] = {"x": _x(steps, places, axis), "y": highest}
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


def _line(line: Series, places: Positions, axis: Axis) -> Line:
    low, high = (None if column is None else rounded(column) for column in (line.low, line.high))
    return {"x": _x(line.step, places, axis), "y": rounded(line.value), "low": low, "high": high}


def _x(steps: Sequence[int], places: Positions, axis: Axis) -> list[float]:
    return [float(f"{place:.9g}") for place in places.of_steps(axis, steps).tolist()]

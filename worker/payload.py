"""What the page of a run shows, as one small JSON value; benchmarks/history.py measures its time and size."""

import math
from typing import Any

from sqlmodel import Session

from worker import database, history, logs, metrics, runs
from worker.metrics import Series
from worker.series import extents

DIGITS = 6
MOST_POINTS = 300  # of a series
POINTS = 3000  # of all series together
FEWEST_POINTS = 60  # of a series, however many there are
EVENTS = 100
LOG_LINES = 200
_LEFT_OUT = {"event_offset", "log_offset", "lease_owner", "owner"}


def run_payload(*, session: Session, run_id: str) -> dict[str, Any]:
    """The run's row, its series thinned, its last events and log lines.

    `axes` are the steps and times (seconds since the epoch) that series share; a series names its axis by number. `low` and
    `high` are there where points are means of rows that differ. Numbers have 6 significant digits.

    Raises:
        RunNotFound: there is no such run.
    """
    run = runs.get(session=session, run_id=run_id)
    axes, shown = _on_axes(_series(session, run.id))
    return {
        "now": round(database.now(session=session), 3),
        "run": run.model_dump(mode="json", exclude=_LEFT_OUT),
        "axes": axes,
        "series": shown,
        "events": [
            event.model_dump(exclude={"run_id"})
            for event in history.events(session=session, run_id=run.id, limit=EVENTS)
        ],
        "log": [
            {"id": line.id, "text": line.text} for line in logs.tail(session=session, run_id=run.id, limit=LOG_LINES)
        ],
    }


def significant(value: float | None, digits: int = DIGITS) -> float | int | None:
    """The number with so many significant digits, as an int where nothing is lost by it; None stays None."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _series(session: Session, run_id: str) -> list[Series]:
    count = len(extents(session=session, run_id=run_id))
    points = max(FEWEST_POINTS, min(MOST_POINTS, POINTS // max(1, count)))
    return metrics.series(session=session, run_id=run_id, points=points)


def _on_axes(found: list[Series]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Series that were measured at the same steps share one list of steps and one of times."""
    numbers: dict[tuple[int, ...], int] = {}
    axes: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for one in found:
        number = numbers.setdefault(tuple(one.step), len(axes))
        if number == len(axes):
            axes.append({"step": one.step, "time": [round(moment, 1) for moment in one.time]})
        values: dict[str, Any] = {"name": one.name, "rank": one.rank, "axis": number, "value": _rounded(one.value)}
        if one.low is not None and one.high is not None:
            values |= {"low": _rounded(one.low), "high": _rounded(one.high)}
        shown.append(values)
    return axes, shown


def _rounded(values: list[float | None]) -> list[float | int | None]:
    return [significant(value) for value in values]

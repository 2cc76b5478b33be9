"""The data of the page Run, read from the database once for all viewers; metric series only when new ones are stored."""

import json
from dataclasses import dataclass, field

from sqlmodel import Session

from app.documents.run import place
from app.pages.common.cache import TimedCache
from app.pages.run import charts
from app.pages.run.chart_layout import Mark
from app.pages.run.html import Queue
from worker.datasets import datasets
from worker.store import database, history, logs, runs, series
from worker.store.series import Series
from worker.store.tables import Attempt, LogLine, Run, RunEvent

LOG_LINES, EVENTS = 200, 100
_POINTS, _MEMORY_POINTS = 280, 1120
_MEMORY = ("memory_allocated", "memory_reserved", "memory_peak", "host_rss")


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    run: Run
    queue: Queue
    events: list[RunEvent]
    log: list[LogLine]
    dataset_names: dict[str, str]
    attempts: list[Attempt] = field(default_factory=list)
    set_losses: dict[str, float | None] = field(default_factory=dict)
    """The newest losses of each of several data sets, by metric."""

    @property
    def version(self) -> str:
        """A text that changes with anything on the page except relative times."""
        last_event = self.events[-1].id if self.events else 0
        last_line = self.log[-1].id if self.log else 0
        row = self.run.model_dump(mode="json", exclude={"lease_expires_at", "lease_owner", "config"})
        return json.dumps([row, self.queue, last_event, last_line])


@dataclass(frozen=True)
class Drawing:
    """What determines a chart: the run, how much of it is stored, and the display options."""

    run_id: str
    attempt: int
    stored: int
    log_loss: bool = False
    smoothing: float = 0.0


_snapshots: TimedCache[str, Snapshot] = TimedCache(seconds=1.0)
_series: TimedCache[tuple[str, int, int], list[Series]] = TimedCache(seconds=60.0, size=32)
_figures: TimedCache[Drawing, str] = TimedCache(seconds=60.0, size=32)


def current(run_id: str) -> Snapshot:
    """The run, at most one second old.

    Raises:
        RunNotFound: no run has this id.
    """
    return _snapshots.get(run_id, lambda: _read(run_id))


def forget() -> None:
    """Clears the caches after somebody stopped or resumed a run."""
    for cache in (_snapshots, _series, _figures):
        cache.clear()


def drawing(snapshot: Snapshot, *, log_loss: bool, smoothing: float) -> Drawing:
    """The chart for these options. Two drawings are equal exactly if their figures are."""
    run = snapshot.run
    return Drawing(run.id, run.attempt, run.event_offset, bool(log_loss), round(float(smoothing or 0), 2))


def figure(wanted: Drawing, events: list[RunEvent]) -> str:
    """The figure as JSON for static/charts.js; empty while there are no metrics."""
    return _figures.get(wanted, lambda: _figure(wanted, events))


def _figure(wanted: Drawing, events: list[RunEvent]) -> str:
    series = _series.get((wanted.run_id, wanted.attempt, wanted.stored), lambda: _read_series(wanted.run_id))
    marks = [
        Mark(event.step, event.kind, event.message)
        for event in events
        if event.kind in ("checkpoint", "resumed") and event.step is not None
    ]
    plot = charts.figure(series, marks, revision=wanted.run_id, log_loss=wanted.log_loss, smoothing=wanted.smoothing)
    return "" if plot is None else json.dumps(plot, separators=(",", ":"))


def _read(run_id: str) -> Snapshot:
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        return Snapshot(
            run=run,
            queue=place(session, run),
            events=history.events(session=session, run_id=run.id, limit=EVENTS),
            log=logs.tail(session=session, run_id=run.id, limit=LOG_LINES),
            attempts=runs.attempts(session=session, run_id=run.id),
            dataset_names={item.id: item.name for item in datasets.listing(session=session)},
            set_losses=_set_losses(session, run),
        )


def _set_losses(session: Session, run: Run) -> dict[str, float | None]:
    plan = run.plan or {}
    if not plan.get("sets") and not plan.get("eval_sets"):
        return {}
    latest = series.latest(session=session, run_id=run.id)
    return {name: value for (name, _), (_, value) in latest.items() if charts.is_set_loss(name)}


def _read_series(run_id: str) -> list[Series]:
    """The charts' series. The memory series of all ranks share a number of points, so many ranks stay few bytes."""
    with database.read() as session:
        reported = {name for name, _ in series.extents(session=session, run_id=run_id)}
        general = [name for name in reported if charts.is_drawn(name) and name not in _MEMORY]
        lines_of_run = series.series(session=session, run_id=run_id, names=general, points=_POINTS)
        lines = sum(1 for name, _ in series.latest(session=session, run_id=run_id) if name in _MEMORY)
        points = max(60, min(_POINTS, _MEMORY_POINTS // max(lines, 1)))
        return lines_of_run + series.series(session=session, run_id=run_id, names=_MEMORY, points=points)

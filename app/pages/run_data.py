"""What the page Run shows, read from the database: once for all viewers, and the series only when there are new ones."""

import json
from dataclasses import dataclass, field

from app import charts
from app.cache import TimedCache
from app.chart_layout import Mark
from app.pages.run_parts import Queue
from app.run_document import place
from worker import database, datasets, history, logs, metrics, runs
from worker.metrics import Series
from worker.models import Attempt, LogLine, Run, RunEvent

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

    @property
    def version(self) -> str:
        """Changes with anything that the page shows but for the passing of time."""
        last_event = self.events[-1].id if self.events else 0
        last_line = self.log[-1].id if self.log else 0
        row = self.run.model_dump(mode="json", exclude={"lease_expires_at", "lease_owner", "config"})
        return json.dumps([row, self.queue, last_event, last_line])


@dataclass(frozen=True)
class Drawing:
    """Which chart: of which run, with how much of it stored, drawn how."""

    run_id: str
    attempt: int
    stored: int
    log_loss: bool = False
    smoothing: float = 0.0


_snapshots: TimedCache[str, Snapshot] = TimedCache(seconds=1.0)
_series: TimedCache[tuple[str, int, int], list[Series]] = TimedCache(seconds=60.0, size=32)
_figures: TimedCache[Drawing, str] = TimedCache(seconds=60.0, size=32)


def look(run_id: str) -> Snapshot:
    """The run as it stands, at most a second old.

    Raises:
        RunNotFound: no run has this id.
    """
    return _snapshots.get(run_id, lambda: _read(run_id))


def forget() -> None:
    """Makes the next look a fresh one: somebody has just stopped or resumed a run."""
    for cache in (_snapshots, _series, _figures):
        cache.clear()


def drawing(snapshot: Snapshot, *, log_loss: bool, smoothing: float) -> Drawing:
    """The chart that a viewer asks for. Two are the same exactly if their figures are."""
    run = snapshot.run
    return Drawing(run.id, run.attempt, run.event_offset, bool(log_loss), round(float(smoothing or 0), 2))


def figure(wanted: Drawing, events: list[RunEvent]) -> str:
    """The figure as JSON for static/charts.js; empty while nothing was measured."""
    return _figures.get(wanted, lambda: _figure(wanted, events))


def _figure(wanted: Drawing, events: list[RunEvent]) -> str:
    series = _series.get((wanted.run_id, wanted.attempt, wanted.stored), lambda: _read_series(wanted.run_id))
    told = [event for event in events if event.kind in ("checkpoint", "resumed")]
    marks = [Mark(event.step, event.kind, event.message) for event in told if event.step is not None]
    made = charts.figure(series, marks, revision=wanted.run_id, log_loss=wanted.log_loss, smoothing=wanted.smoothing)
    return "" if made is None else json.dumps(made, separators=(",", ":"))


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
        )


def _read_series(run_id: str) -> list[Series]:
    """The charts' series; those that every rank has share a number of points, so that many ranks are not many bytes."""
    general = [name for name in charts.METRICS if name not in _MEMORY]
    with database.read() as session:
        found = metrics.series(session=session, run_id=run_id, names=general, points=_POINTS)
        lines = sum(1 for name, _ in metrics.latest(session=session, run_id=run_id) if name in _MEMORY)
        points = max(60, min(_POINTS, _MEMORY_POINTS // max(lines, 1)))
        return found + metrics.series(session=session, run_id=run_id, names=_MEMORY, points=points)

"""A run at one moment, read from the database for its page."""

from dataclasses import dataclass
from typing import Any

from app.documents.live import reader as live
from app.documents.live.panels import is_of_set, panels
from app.documents.live.plots import memory_limits, ranks_of
from app.documents.live.reader import Cursor, facts
from app.documents.run import place
from app.pages.common.cache import TimedCache
from worker.datasets import datasets
from worker.store import database, history, runs, series
from worker.store.history import PhaseBegan
from worker.store.tables import Attempt, Run, RunEvent
from worker.supervision import run_diagnosis

EVENTS = 100
_LOSSES_SECONDS = 30.0  # those of several data sets would be sent with every step


@dataclass(frozen=True)
class Snapshot:
    """What the page shows of a run beside its plots and its log."""

    run: Run
    events: list[RunEvent]
    has_log: bool
    dataset_names: dict[str, str]
    cursor: Cursor
    facts: dict[str, Any]
    panels: list[dict[str, Any]]
    attempts: list[Attempt]
    phases: list[PhaseBegan]
    set_losses: dict[str, float | None]
    """The newest losses of each of several data sets, by metric."""


_losses: TimedCache[tuple[str, int, str], dict[str, float | None]] = TimedCache(_LOSSES_SECONDS)
_comparisons: TimedCache[tuple[str, int], dict[str, Any] | None] = TimedCache(seconds=60)


def read(run_id: str) -> Snapshot:
    """The run now. Raises RunNotFound if no run has this id."""
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        latest = series.latest(session=session, run_id=run.id)
        set_losses = {name: value for (name, _), (_, value) in latest.items() if is_of_set(name)}
        speed = live.mean_speed(session, run) if run.status.ended else live.latest_speed(latest)
        return Snapshot(
            run=run,
            events=history.events(session=session, run_id=run.id, limit=EVENTS),
            has_log=bool(history.log_tail(session=session, run_id=run.id, limit=1)),
            dataset_names={item.id: item.name for item in datasets.listing(session=session)},
            cursor=live.end(session, run),
            facts=facts(run, place(session, run), speed),
            panels=panels(ranks_of(session, run), memory_limits(run)),
            attempts=runs.attempts(session=session, run_id=run.id),
            phases=history.phases(session=session, run_id=run.id),
            set_losses=_losses.get((run.id, run.attempt, run.status.value), lambda: set_losses),
        )


def compared(run: Run) -> dict[str, Any] | None:
    """A failed run beside one that finished; None without one, or without a difference."""
    if not run.error:
        return None
    found = _comparisons.get((run.id, run.attempt), lambda: run_diagnosis.compared(run.id))
    return found if found and (found["settings"] or found["lines"]) else None

"""The data of the page Run, read from the database once for all viewers."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from app.documents.live import reader as live
from app.documents.live.facts import facts
from app.documents.live.panels import is_set_loss, panels
from app.documents.live.plots import memory_limits, ranks_of
from app.documents.live.reader import Cursor
from app.documents.run import place
from app.pages.common.cache import TimedCache
from app.pages.run.html import Queue
from worker.datasets import datasets
from worker.store import database, history, logs, runs
from worker.store.measured import series
from worker.store.measured.series import Key
from worker.store.tables import Attempt, LogLine, Run, RunEvent
from worker.supervision import run_diagnosis

EVENTS, LOG_LINES = 100, 12


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    run: Run
    queue: Queue
    events: list[RunEvent]
    log: list[LogLine]
    dataset_names: dict[str, str]
    cursor: Cursor
    facts: dict[str, Any]
    panels: list[dict[str, Any]]
    attempts: list[Attempt] = field(default_factory=list)
    phases: list[RunEvent] = field(default_factory=list)
    compared: dict[str, Any] | None = None
    """A failed run beside one that finished."""
    set_losses: dict[str, float | None] = field(default_factory=dict)
    """The newest losses of each of several data sets, by metric."""

    @property
    def version(self) -> str:
        """A text that changes with anything on the page except relative times."""
        row = self.run.model_dump(mode="json", exclude={"expires_at", "holder", "config"})
        return json.dumps([row, self.queue, str(self.cursor)])


_snapshots: TimedCache[str, Snapshot] = TimedCache(seconds=1.0)
_comparisons: TimedCache[tuple[str, int], dict[str, Any] | None] = TimedCache(seconds=60)


def current(run_id: str) -> Snapshot:
    """The run, at most one second old.

    Raises:
        RunNotFound: no run has this id.
    """
    return _snapshots.get(run_id, lambda: _read(run_id))


def forget() -> None:
    """Clears the cache after somebody stopped or resumed a run."""
    _snapshots.clear()


def _read(run_id: str) -> Snapshot:
    snapshot = _read_run(run_id)
    if not snapshot.run.error:
        return snapshot
    compared = _comparisons.get((run_id, snapshot.run.attempt), lambda: run_diagnosis.compared(run_id))
    return replace(snapshot, compared=compared)


def _read_run(run_id: str) -> Snapshot:
    with database.read() as session:
        run = runs.get(session=session, run_id=run_id)
        queue, latest = place(session, run), series.latest(session=session, run_id=run.id)
        speed = latest.get(("tokens_per_second", -1), (0, None))[1]
        return Snapshot(
            run=run,
            queue=queue,
            events=history.events(session=session, run_id=run.id, limit=EVENTS),
            log=logs.tail(session=session, run_id=run.id, limit=LOG_LINES),
            dataset_names={item.id: item.name for item in datasets.listing(session=session)},
            cursor=live.end(session, run),
            facts=facts(run, queue, speed),
            panels=panels(ranks_of(session, run), memory_limits(run)),
            attempts=runs.attempts(session=session, run_id=run.id),
            phases=history.phases(session=session, run_id=run.id),
            set_losses=_set_losses(run, latest),
        )


def _set_losses(run: Run, latest: dict[Key, tuple[int, float | None]]) -> dict[str, float | None]:
    plan = run.plan or {}
    if not plan.get("sets") and not plan.get("eval_sets"):
        return {}
    return {name: value for (name, _), (_, value) in latest.items() if is_set_loss(name)}

"""What is new in a run since the last look: facts, points of its plots, events and lines of its log, in at most 2 kB."""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Self

from sqlmodel import Session

from app.documents.live.panels import is_drawn, is_summed_up, line_key
from app.documents.live.plots import rounded
from app.documents.run import Place, place
from app.format import numbers
from app.format.run_text import eta
from app.texts import _
from training.run_folder.evaluated import REWARD, evaluated
from training.units import NONE, byte_size
from worker.store import database, history, runs, series
from worker.store.metrics import Point
from worker.store.series import Key
from worker.store.tables import LogLine, Run, RunEvent, Status

MOST_STEPS = 6
"""Steps in one tick; more are summed up, each with mean, minimum and maximum."""
GAP = 200  # steps or log lines that a page lacks; of more it loads all anew
_EVENTS = 5
_TEXT = 400  # characters of log lines or events in a tick
_COUNTERS = ("tokens", "epoch")
_BYTES = 1100  # of points in a tick
_SPEED = "tokens_per_second"
_ABSENT = ""  # in a column; null is NaN
_MINUTE = 60.0


@dataclass(frozen=True)
class Cursor:
    """How far a page has read: the ids of the last event and log line, and the last step."""

    event: int
    line: int
    step: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The cursor in an event id such as "12-340-3000", or None."""
        parts = text.split("-")
        return cls(*map(int, parts)) if len(parts) == 3 and all(part.isdecimal() for part in parts) else None

    def lacks(self, other: Self) -> bool:
        """True if `other` has read further in anything."""
        return self.event < other.event or self.line < other.line or self.step < other.step

    def is_just_before(self, end: Self) -> bool:
        """True if a page that has read this far lacks so little of what is there that it can be sent."""
        return self.event <= end.event and self.line <= end.line and 0 <= end.step - self.step <= GAP

    def __str__(self) -> str:
        return f"{self.event}-{self.line}-{self.step}"


class Reader:
    """Reads one run again and again; `facts` and `cursor` are those of the last reading.

    It begins after `cursor` if that is just before the end; else at the end, and the page loads all anew.
    """

    def __init__(self, run_id: str, cursor: Cursor | None) -> None:
        self.run_id, self.cursor = run_id, cursor
        self.facts: dict[str, Any] = {}
        self._seen: dict[Key, int] = {}
        self._of_ranks: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._speed: float | None = None
        self._stored: tuple[int, int, int] | None = None

    def read(self) -> dict[str, Any]:
        """What is new: `facts` that changed, `points`, `events`, `log`, or `reload` if it is too much. Empty if nothing is.

        Raises:
            RunNotFound: the run is gone.
        """
        with database.read() as session:
            run = runs.get(session=session, run_id=self.run_id)
            skipped = self._begin(end(session, run)) if self._stored is None else False
            assert self.cursor
            events = history.events(session=session, run_id=run.id, after_id=self.cursor.event, limit=_EVENTS + 1)
            lines = history.log_tail(session=session, run_id=run.id, after_id=self.cursor.line, limit=GAP + 1)
            points, restarted = self._points(session, run)
            queue = place(session, run)
            speed = mean_speed(session, run) if run.status.ended else self._speed
        news = self._changed(facts(run, queue, speed)) | self._texts(events, lines)
        if restarted or skipped or len({point.step for point in points}) > GAP or len(lines) > GAP:
            news = {"facts": news["facts"]} if "facts" in news else {}
            news["reload"] = True
        elif points:
            news["points"] = self._columns(points, run.started_at or 0.0)
        self.cursor = Cursor(
            max([self.cursor.event, *(event.id or 0 for event in events)]),
            max([self.cursor.line, *(line.id or 0 for line in lines)]),
            max([0 if restarted else self.cursor.step, *(point.step for point in points)]),
        )
        return news

    def _begin(self, now: Cursor) -> bool:
        """Begins at the given cursor, or at the end if there is none. True if the given one cannot be used."""
        given, usable = self.cursor, self.cursor is not None and self.cursor.is_just_before(now)
        self.cursor = given if usable else now
        return given is not None and not usable

    def _changed(self, now: dict[str, Any]) -> dict[str, Any]:
        before = self.facts
        if before and now["step"] == before["step"] and abs((now["until"] or 0) - (before["until"] or 0)) < _MINUTE:
            now["until"] = before["until"]  # it moves with the clock, as long as no step ends
        changed = {name: value for name, value in now.items() if name not in self.facts or self.facts[name] != value}
        self.facts = now
        return {"facts": changed} if changed else {}

    def _texts(self, events: Sequence[RunEvent], lines: Sequence[LogLine]) -> dict[str, Any]:
        news: dict[str, Any] = {}
        if len(events) > _EVENTS or sum(len(event.message) for event in events) > _TEXT:
            news["events"] = None  # too many: the page reads them itself
        elif events:
            news["events"] = [[one.id, round(one.time), one.kind, one.level, one.message] for one in events]
        if sum(len(line.text) + 20 for line in lines) > _TEXT:
            news["log"] = None
        elif lines:
            news["log"] = [[line.id, line.attempt, line.text] for line in lines]
        return news

    def _points(self, session: Session, run: Run) -> tuple[list[Point], bool]:
        """The rows that are new, and whether the run went back to an earlier step, and so reports steps again.

        Rows beyond the run's step are those of an earlier attempt.
        """
        assert self.cursor
        stored = (run.attempt, run.event_offset, run.step)
        if stored == self._stored:
            return [], False
        restarted = self._stored is not None and (self._stored[0] != run.attempt or run.step < self._stored[2])
        first = self._stored is None or restarted
        known = series.extents(session=session, run_id=run.id)
        ends = {key: min(extent.last_step, run.step) for key, extent in known.items() if is_sent(key[0])}
        begin = run.step if restarted else self.cursor.step
        before = {key: begin if first else self._seen.get(key, known[key].first_step - 1) for key in ends}
        after = {key: step for key, step in before.items() if ends[key] > step}
        rows = series.rows_after(session=session, run_id=run.id, after=after) if after else []
        points = [point for point in rows if point.step <= run.step]
        if first:
            self._start(series.latest(session=session, run_id=run.id))
        self._seen, self._stored = ends, stored
        self._speed = next((one.value for one in reversed(points) if one.name == _SPEED), self._speed)
        return points, restarted

    def _start(self, latest: Mapping[Key, tuple[int, float | None]]) -> None:
        self._speed = latest_speed(latest)
        self._of_ranks.clear()
        for (name, rank), (_step, value) in latest.items():
            self._keep(name, rank, value)

    def _keep(self, name: str, rank: int, value: float | None) -> None:
        if rank >= 0 and value is not None:
            self._of_ranks[name][rank] = value

    def _columns(self, points: Sequence[Point], start: float) -> dict[str, Any]:
        """The points as columns; many steps as so few sums that the tick stays small."""
        for most in (MOST_STEPS, 3, 1):
            columns = self._sums(points, start, most)
            if len(json.dumps(columns)) <= _BYTES:
                break
        return columns

    def _sums(self, points: Sequence[Point], start: float, most: int) -> dict[str, Any]:
        """Steps, seconds since the start, and the values of each line, of at most `most` groups of steps."""
        steps = sorted({point.step for point in points})
        size = -(-len(steps) // most)
        groups = [steps[first : first + size] for first in range(0, len(steps), size)]
        number = {step: index for index, group in enumerate(groups) for step in group}
        cells: dict[str, list[list[Point]]] = {}
        for point in points:
            summed = point.rank >= 0 and is_summed_up(list(self._of_ranks[point.name]))
            key = point.name if summed else line_key(point.name, point.rank)
            cells.setdefault(key, [[] for _ in groups])[number[point.step]].append(point)
        times = [max(point.time for point in points if number[point.step] == index) for index in range(len(groups))]
        columns = {key: [self._cell(key, cell) for cell in column] for key, column in cells.items()}
        counters = {name: columns.pop(name) for name in _COUNTERS if name in columns}
        places = {"step": [group[-1] for group in groups], "time": [round(moment - start, 1) for moment in times]}
        return {**places, **counters, "values": columns}

    def _cell(self, key: str, points: list[Point]) -> Any:
        """A value, or mean (of ranks: median), minimum and maximum of several; `_ABSENT` without points."""
        if not points:
            return _ABSENT
        for point in points:
            self._keep(point.name, point.rank, point.value)
        values = [point.value for point in points if point.value is not None]
        if key in _COUNTERS or not values:
            return rounded([max(values, default=None)])[0] if key != "tokens" else int(max(values, default=0))
        if points[0].rank >= 0 and key == points[0].name:  # the ranks together
            known = list(self._of_ranks[key].values())
            return rounded([median(known), min(known), max(known)])
        return rounded(values)[0] if len(points) == 1 else rounded([fmean(values), min(values), max(values)])


def is_sent(name: str) -> bool:
    """True for metrics that a page follows."""
    return is_drawn(name) or name in _COUNTERS


def end(session: Session, run: Run) -> Cursor:
    """The cursor of a page that shows all there is."""
    events = history.events(session=session, run_id=run.id, limit=1)
    lines = history.log_tail(session=session, run_id=run.id, limit=1)
    return Cursor(events[-1].id or 0 if events else 0, lines[-1].id or 0 if lines else 0, run.step)


def latest_speed(latest: Mapping[Key, tuple[int, float | None]]) -> float | None:
    """The newest tokens per second, of the newest value of each series."""
    return latest.get((_SPEED, -1), (0, None))[1]


def mean_speed(session: Session, run: Run) -> float | None:
    """Tokens per second of an ended run: as it has reported them, else the mean of what it has measured."""
    if reported := (run.summary or {}).get(_SPEED):
        return float(reported)
    measured = series.series(session=session, run_id=run.id, names=(_SPEED,))
    values = [value for line in measured for value in line.value if value is not None]
    return fmean(values) if values else None


def facts(run: Run, queue: Place | None, speed: float | None) -> dict[str, Any]:
    """Texts by name. `share` is the share of the work done (None: unknown), `since` is when a running run would have begun
    if it had never been interrupted, and `until` its expected end, in seconds since the epoch.

    `speed` is in tokens per second: the latest of a run that has not ended, else the mean.
    """
    left = eta(run.model_dump(include={"seconds_per_step", "total_steps", "step"}))
    running = run.status is Status.RUNNING
    measure, value = evaluated(run.config.get("task"), run.final_loss)
    return {
        "status": run.status.value,
        "phase": phase(run, queue),
        "step": _of(numbers.count(run.step), numbers.count(run.total_steps)) if run.total_steps else NONE,
        "loss_label": _("Reward") if measure == REWARD else _("Loss"),
        "loss": _("not finite") if run.status is Status.DIVERGED else numbers.decimal(value),
        "speed_label": _("Mean speed") if run.status.ended else _("Speed"),
        "speed": numbers.rate(speed, "tokens"),
        "since": run.working_since - run.worked_seconds if running and run.working_since else None,
        "elapsed": numbers.duration(None if running else run.worked(time.time())),
        "devices": ", ".join(run.devices) or NONE,
        "memory": memory(run),
        "until": round(time.time() + left) if running and left is not None else None,
        "share": share(run),
    }


def phase(run: Run, queue: Place | None) -> str:
    """What the run does at present, with the progress of phases that have no steps."""
    if run.status is Status.QUEUED:
        if not queue:
            return _("queued")
        if queue.job and not queue.quota:
            return queue.job
        where = _("position {place} of {waiting} in the queue").format(place=queue.place, waiting=queue.waiting)
        if queue.running:
            where = _("{place}, {runs} running").format(place=where, runs=numbers.plural(queue.running, "run", "runs"))
        why = queue.quota or queue.overloaded
        return f"{where}. {why}" if why else where
    if run.status.ended:
        return _(run.status.value)
    if run.request == "stop":
        return _("stopping: saving a checkpoint")
    shown = _(run.phase or "starting")
    return (
        f"{shown} {_of(numbers.count(run.phase_done or 0), numbers.count(run.phase_total))}"
        if run.phase_total
        else shown
    )


def memory(run: Run) -> str:
    """The highest memory of a rank so far, and the limit if it has one: "3.1 GiB of 80.0 GiB"."""
    limit = (run.forecast or {}).get("limit_bytes")
    peak = byte_size(run.peak_bytes)
    return _of(peak, byte_size(limit)) if limit and run.peak_bytes is not None else peak


def _of(part: str, whole: str) -> str:
    return _("{count} of {total}").format(count=part, total=whole)


def share(run: Run) -> float | None:
    """The share of the work done, 0 to 1: of the steps, or of a phase before training; None if it is unknown."""
    if run.status is Status.RUNNING and run.phase_total and run.phase != "training":
        return round(min((run.phase_done or 0) / run.phase_total, 1.0), 3)
    if run.total_steps:
        return round(min(run.step / run.total_steps, 1.0), 3)
    return None if run.status is Status.RUNNING else 0.0

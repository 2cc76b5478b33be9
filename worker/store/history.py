"""Stores the training program's records and output, and reads a run's events and log; secrets are redacted."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from sqlalchemy import desc, func, insert, update
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from training.redaction import clean, redact
from training.run_folder import events as records
from training.run_folder.evaluated import final_loss
from training.run_folder.memory_words import summary
from training.units import byte_size
from worker.store import database, long_rows, metrics, outbox, samples
from worker.store.metrics import WHOLE_RUN, Point
from worker.store.tables import Attempt, Event, LogLine, Metric, Run, RunEvent

T = TypeVar("T", RunEvent, LogLine)

LOSSES = ("loss", "eval_loss")
SMOOTHING = 64  # losses over which the time of a step is averaged
LONGEST_PHASE = 40
MOST_SEARCHED = 100_000
"""Lines of a log that one search reads at most."""


def apply(
    *,
    session: Session,
    run_id: str,
    attempt: int,
    events: Sequence[records.Event],
    new_offset: int,
    node_offsets: Sequence[int] = (),
) -> bool:
    """Stores a batch of records with the positions after them: `new_offset` in events.jsonl, and `node_offsets` in the files of the
    run's further machines.

    False, with nothing stored, if the attempt is not the current one. Storing the same batch again changes nothing.
    """
    run = session.exec(select(Run).where(Run.id == run_id, Run.attempt == attempt).with_for_update()).first()
    if run is None:
        return False
    nodes = {str(number): offset for number, offset in enumerate(node_offsets, 1)}
    if new_offset <= run.event_offset and all(nodes[number] <= run.node_offsets.get(number, 0) for number in nodes):
        return True
    diverged, points = run.diverged, list[Point]()
    for event in events:
        points += _store(run, event)
        _store_report(session, run, event)
        _add_event(session, run, event)
    metrics.add(session=session, run_id=run_id, points=points)
    samples.add(session=session, run_id=run_id, events=events)
    if any(point.name == "loss" for point in points):
        run.seconds_per_step = _seconds_per_step(session, run) or run.seconds_per_step
    run.event_offset, run.node_offsets = new_offset, run.node_offsets | nodes
    session.add(run)
    session.flush()
    if run.diverged and not diverged:
        outbox.enqueue(session=session, run=run, event=Event.DIVERGED)
    return True


def note(*, session: Session, run: Run, message: str, level: str = "info", kind: str = "note") -> None:
    """Adds a line to the run's events; `level` is info, warning or error."""
    values = {"run_id": run.id, "attempt": run.attempt, "kind": kind, "level": level, "message": redact(message)}
    session.flush()
    session.exec(insert(RunEvent).values(**values, time=database.clock()))


def append_log(*, session: Session, run_id: str, attempt: int, lines: list[str], new_offset: int) -> bool:
    """Stores lines with `new_offset`, the position in output.log after them.

    False, with nothing stored, if the attempt is not the current one. Storing the same part again changes nothing.
    """
    current = select(Run.log_offset).where(Run.id == run_id, Run.attempt == attempt).with_for_update()
    offset = session.exec(current).first()
    if offset is None:
        return False
    if new_offset > offset:
        session.exec(update(Run).where(col(Run.id) == run_id).values(log_offset=new_offset))
        now = time.time()
        rows = [{"run_id": run_id, "attempt": attempt, "time": now, "text": clean(line)} for line in lines]
        if rows:
            session.exec(insert(LogLine), params=rows)
    return True


def events(*, session: Session, run_id: str, after_id: int = 0, limit: int = 500) -> list[RunEvent]:
    """The last `limit` events after `after_id`, the oldest first."""
    return _last(session, _after(RunEvent, run_id, after_id), limit)


class PhaseBegan(NamedTuple):
    """When a phase of an attempt began, in seconds since the epoch."""

    attempt: int
    time: float
    message: str


def phases(*, session: Session, run_id: str) -> list[PhaseBegan]:
    """All the phases of a run in order: a long one evaluates thousands of times."""
    began = select(RunEvent.attempt, RunEvent.time, RunEvent.message).where(RunEvent.run_id == run_id)
    rows = session.exec(began.where(RunEvent.kind == records.PhaseStarted.kind).order_by(col(RunEvent.id)))
    return [PhaseBegan(*row) for row in rows]


def has_checkpoint(*, session: Session, run_id: str) -> bool:
    """True if the run has ever saved a checkpoint."""
    saved = select(RunEvent.id).where(RunEvent.run_id == run_id, RunEvent.kind == records.CheckpointSaved.kind)
    return session.exec(saved.limit(1)).first() is not None


def following(*, session: Session, run_id: str, after_id: int = 0, limit: int = 500) -> list[RunEvent]:
    """The first `limit` events after `after_id`, the oldest first."""
    return _first(session, _after(RunEvent, run_id, after_id), limit)


def log_tail(
    *, session: Session, run_id: str, after_id: int = 0, before_id: int | None = None, limit: int = 500
) -> list[LogLine]:
    """The last `limit` lines of the log after `after_id` and before `before_id`, the oldest first."""
    return _last(session, _after(LogLine, run_id, after_id, before_id), limit)


def log_head(*, session: Session, run_id: str, after_id: int = 0, limit: int = 500) -> list[LogLine]:
    """The first `limit` lines of the log after `after_id`, the oldest first."""
    return _first(session, _after(LogLine, run_id, after_id), limit)


def last_line_with(
    *, session: Session, run_id: str, text: str, before_id: int | None = None
) -> tuple[int | None, int | None]:
    """The id of the last line before `before_id` that contains `text`, whatever its case; None if none of the lines read does.

    Reads at most MOST_SEARCHED lines. Returns as well the id before which there are lines that were not read; None if all were.
    """
    ids = _after(LogLine, run_id, before_id=before_id).order_by(desc("id")).limit(MOST_SEARCHED).subquery()
    first, count = session.exec(select(func.min(ids.c.id), func.count()).select_from(ids)).one()
    found = select(func.max(ids.c.id)).where(ids.c.text.icontains(text, autoescape=True))
    return session.exec(found).one(), first if count == MOST_SEARCHED else None


def _after(kind: type[T], run_id: str, after_id: int = 0, before_id: int | None = None) -> SelectOfScalar[T]:
    chosen = select(kind).where(kind.run_id == run_id, col(kind.id) > after_id)
    return chosen if before_id is None else chosen.where(col(kind.id) < before_id)


def _first(session: Session, chosen: SelectOfScalar[T], limit: int) -> list[T]:
    return _short(session, chosen.order_by("id").limit(limit))


def _last(session: Session, chosen: SelectOfScalar[T], limit: int) -> list[T]:
    return _short(session, chosen.order_by(desc("id")).limit(limit))[::-1]


def _short(session: Session, chosen: SelectOfScalar[T]) -> list[T]:
    """The rows; fewer if they are long, so that no answer takes gigabytes."""
    with session.exec(chosen.execution_options(**long_rows.AT_ONCE)) as rows:
        return list(long_rows.within(rows, "text" if chosen.column_descriptions[0]["type"] is LogLine else "message"))


def _store(run: Run, event: records.Event) -> list[Point]:
    """Updates the run's columns and returns the metrics to store."""
    match event:
        case records.PhaseStarted():
            run.phase, run.phase_done, run.phase_total = event.phase[:LONGEST_PHASE], None, None
        case records.Progress():
            run.phase_done, run.phase_total = event.done, event.total
        case records.Planned():
            run.plan = dataclasses.asdict(event)
            run.total_steps, run.step = event.total_steps, event.start_step
        case records.Resumed():
            run.step = event.step
        case records.Finished():
            run.step = max(run.step, event.step)
            _store_peak(run, (event.summary.get("memory") or {}).get("peak_bytes") or [])
        case records.OutOfMemory():
            _store_peak(run, [event.memory.get("peak"), event.memory.get("allocated")])
        case records.Metrics():
            return _store_metrics(run, event)
    return []


def _store_report(session: Session, run: Run, event: records.Event) -> None:
    """Stores the attempt's first out-of-memory report."""
    if isinstance(event, records.OutOfMemory):
        mine = col(Attempt.run_id) == run.id, col(Attempt.number) == run.attempt, col(Attempt.out_of_memory).is_(None)
        session.exec(update(Attempt).where(*mine).values(out_of_memory=dataclasses.asdict(event)))


def _store_metrics(run: Run, event: records.Metrics) -> list[Point]:
    rank = WHOLE_RUN if event.rank is None else event.rank
    run.step = max(run.step, event.step)
    for name in LOSSES:
        if name in event.values:
            _store_loss(run, name, event.values)
    # On CPU no device memory is used: take the process's own memory.
    _store_peak(run, [event.values.get("memory_peak") or event.values.get("host_rss")])
    return [Point(name, rank, event.step, event.time, value) for name, value in event.values.items()]


def _store_peak(run: Run, measured: Sequence[float | None]) -> None:
    for peak in measured:
        if peak and math.isfinite(peak):
            run.peak_bytes = max(run.peak_bytes or 0, int(peak))


def _store_loss(run: Run, name: str, values: Mapping[str, float | None]) -> None:
    value = values[name]
    if value is None or not math.isfinite(value):
        run.diverged = True
    elif name == "loss":
        run.final_loss = final_loss(values)
    else:
        run.best_loss = value if run.best_loss is None else min(run.best_loss, value)


def _add_event(session: Session, run: Run, event: records.Event) -> None:
    """Adds the record to the run's events if users should see it."""
    level, step = "info", None
    match event:
        case records.PhaseStarted():
            message = event.phase
        case records.CheckpointSaved():
            step, message = event.step, f"Checkpoint at step {event.step} ({byte_size(event.bytes)}{_stall(event)})."
        case records.Resumed():
            step, message = event.step, f"Resumed from step {event.step}."
            if event.rejected:
                level, message = "warning", f"{message} Newer checkpoints were incomplete: {'; '.join(event.rejected)}."
        case records.ResultSaved():
            step, message = event.step, f"Result saved at step {event.step:,}."
        case records.Note():
            level, message = event.level, event.message
        case records.OutOfMemory():
            level, step, message = "error", event.step, summary(event)
        case records.Failed():
            level, message = "error", f"Rank {event.rank}: {event.message or event.error} {event.fix}".strip()
        case _:
            return
    row = RunEvent(run_id=run.id, attempt=run.attempt, time=event.time, kind=event.kind, message=redact(message))
    row.level, row.step = level, step
    session.add(row)


def _stall(saved: records.CheckpointSaved) -> str:
    """How long a checkpoint stopped training; records of older versions do not have it."""
    return "" if saved.stall_seconds is None else f"; training waited {saved.stall_seconds:.1f} s"


def _seconds_per_step(session: Session, run: Run) -> float | None:
    """Seconds per step over this attempt's latest losses, evaluation and saving included; None before two losses."""
    start = run.plan.get("start_step", 0) if run.plan else 0
    losses = select(Metric.step, Metric.time).where(
        Metric.run_id == run.id,
        Metric.name == "loss",
        Metric.rank == WHOLE_RUN,
        Metric.step > start,
        Metric.step <= run.step,
    )
    rows = session.exec(losses.order_by(col(Metric.step).desc()).limit(SMOOTHING)).all()
    if len(rows) < 2 or rows[0][1] <= rows[-1][1]:
        return None
    (last, ended), (first, began) = rows[0], rows[-1]
    return (ended - began) / (last - first)

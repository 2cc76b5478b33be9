"""What a run took in all its attempts: the training program knows those of the last one only."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from sqlmodel import Session, col, select

from worker.store.metrics import WHOLE_RUN
from worker.store.tables import Attempt, Metric, Run

_RATES = ("tokens_per_second", "samples_per_second")
_LOGGED = ("tokens", *_RATES)
_POWER = "gpu_power"


def over_attempts(*, session: Session, run: Run, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run's last attempt, with the rates, the seconds of training and the joules of all its attempts.

    They follow from the metrics: the tokens between two steps and their speed give the seconds, and the power of each GPU between
    the first and the last step of an attempt its energy. A step that was trained twice counts once.
    """
    if run.attempt < 2:
        return dict(summary)
    steps = _logged(session, run)
    seconds, samples, before = 0.0, 0.0, 0.0
    for step in steps:
        if speed := step.get("tokens_per_second"):
            took = max((step.get("tokens") or before) - before, 0.0) / speed
            seconds, samples = seconds + took, samples + took * (step.get("samples_per_second") or 0.0)
        before = step.get("tokens") or before
    if not seconds:  # nothing was logged
        return dict(summary)
    rates = dict(zip(_RATES, (before / seconds, samples / seconds), strict=True))
    return {**summary, **rates, "train_seconds": seconds, "energy_joules": _joules(session, run, summary)}


def _logged(session: Session, run: Run) -> list[dict[str, float | None]]:
    """The values of each logged step, in order."""
    of_run = Metric.run_id == run.id, Metric.rank == WHOLE_RUN, Metric.step <= run.step, col(Metric.name).in_(_LOGGED)
    rows = session.exec(select(Metric.step, Metric.name, Metric.value).where(*of_run).order_by(col(Metric.step)))
    return [{name: value for _, name, value in part} for _, part in groupby(rows, lambda row: row[0])]


def _joules(session: Session, run: Run, summary: Mapping[str, Any]) -> float | None:
    """The energy of the last attempt as counted, and that of each earlier one by the power of its GPUs."""
    total = summary.get("energy_joules")
    ended = select(Attempt).where(Attempt.run_id == run.id, Attempt.number < run.attempt)
    if total is None:
        return None
    of_run = Metric.run_id == run.id, Metric.name == _POWER, col(Metric.value).is_not(None)
    for attempt in session.exec(ended):
        within = col(Metric.time).between(attempt.started_at, attempt.ended_at or attempt.started_at)
        rows = session.exec(
            select(Metric.rank, Metric.time, Metric.value).where(*of_run, within).order_by(col(Metric.rank))
        )
        for _, part in groupby(rows.all(), lambda row: row[0]):
            measured = [(time, value or 0.0) for _, time, value in part]
            times = [time for time, _ in measured]
            total += (max(times) - min(times)) * sum(value for _, value in measured) / len(measured)
    return float(total)

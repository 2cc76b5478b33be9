"""Sweeps, planned and started. Read-only."""

from typing import Any

from pydantic import Field
from sqlmodel import Session

from app.documents import Document, Stored, columns
from worker.store import sweeps
from worker.store.tables import Run, Sweep
from worker.sweeps.advance import state_word
from worker.sweeps.ranking import Interval
from worker.sweeps.results import Result, Results, results


@columns(Interval)
class IntervalAnswer(Document):
    """A mean over `n` seeds with its 95% interval; `low` and `high` are null with one seed."""

    includes_zero: bool


_RUN = "id", "name", "status", "held", "step", "total_steps", "pause_at", "seconds_per_step", "peak_bytes"


@columns(Run, _RUN)
class TrialRun(Stored):
    """A run of a trial: `value` is its metric, null before the first evaluation; `pause_at` the step at which it waits."""

    seed: int
    value: float | None
    state: str


class Trial(Document):
    """One configuration with its runs, one for each seed, and the metric over them at a step."""

    trial: int
    changes: dict[str, Any]
    summary: IntervalAnswer | None
    at_step: int | None
    finished: bool
    stopped_early: bool
    runs: list[TrialRun]


class SavedSteps(Document):
    """What stopping early saved: runs, their steps that were not trained, and the steps of the whole sweep."""

    runs: int
    steps: int
    of: int


_SWEEP = "id", "name", "owner", "created_at", "stopped_at"


@columns(Sweep, _SWEEP)
class SweepBrief(Stored):
    """A sweep. Times are seconds since the epoch."""

    ended: bool
    method: str
    metric: str
    direction: str
    runs: int
    statuses: dict[str, int]
    best: Trial | None
    lead: IntervalAnswer | None = Field(description="the difference of the best configuration to the second")
    saved: SavedSteps


class SweepList(Document):
    """The sweeps, the newest first."""

    sweeps: list[SweepBrief]


class SweepAnswer(SweepBrief):
    """A sweep with its specification, its plan and its trials, the best first."""

    spec: dict[str, Any]
    plan: dict[str, Any]
    trials: list[Trial]


def brief(session: Session, sweep: Sweep) -> SweepBrief:
    """A sweep as `lathe sweep list` shows it."""
    return SweepBrief(**_values(sweep, results(session, sweep)))


def document(session: Session, sweep_id: str) -> SweepAnswer:
    """What is known of a sweep. Raises SweepNotFound if no sweep has this id."""
    sweep = sweeps.get(session=session, sweep_id=sweep_id)
    found = results(session, sweep)
    trials = [_trial(trial) for trial in found.trials]
    return SweepAnswer(**_values(sweep, found), spec=sweep.spec, plan=sweep.plan, trials=trials)


def _values(sweep: Sweep, found: Results) -> dict[str, Any]:
    early, saved, whole = found.saved_steps
    return {
        **sweep.shown(*_SWEEP),
        "ended": found.ended,
        "method": found.spec.method.value,
        "metric": found.metric,
        "direction": found.spec.direction,
        "runs": len(found.runs),
        "statuses": found.statuses,
        "best": _trial(found.best) if found.best else None,
        "lead": _interval(found.lead),
        "saved": SavedSteps(runs=early, steps=saved, of=whole),
    }


def _trial(result: Result) -> Trial:
    return Trial(
        trial=result.trial,
        changes=result.changes,
        summary=_interval(result.summary),
        at_step=result.at_step,
        finished=result.finished,
        stopped_early=result.stopped_early,
        runs=[_run(run, result) for run in result.runs],
    )


def _run(run: Run, result: Result) -> TrialRun:
    seed = int(run.config.get("seed", 0))
    values = run.shown(*_RUN)
    return TrialRun(**values, seed=seed, value=result.values.get(seed), state=state_word(run))


def _interval(interval: Interval | None) -> IntervalAnswer | None:
    return None if interval is None else IntervalAnswer.model_validate(interval)

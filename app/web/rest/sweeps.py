"""REST routes of sweeps: plan, start, list, show and stop (docs/sweeps.md)."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import Field

from app.access import callers, changes
from app.documents.sweep import brief, document
from app.web.rest.openapi import SWEEP_BODY, ErrorEntry
from app.web.rest.routing import Answer, JsonRouter, Key, Limit, Offset, answers
from worker.store import database, sweeps
from worker.store.submissions import Submission
from worker.store.tables import Status
from worker.sweeps import plan
from worker.sweeps.spec import parse_sweep


class IntervalAnswer(Answer):
    """A mean over `n` seeds with its 95% interval; `low` and `high` are null with one seed."""

    mean: float
    n: int
    low: float | None
    high: float | None
    includes_zero: bool


class TrialRun(Answer):
    """A run of a trial: `value` is its metric, null before the first evaluation; `pause_at` the step at which it waits."""

    id: str
    name: str
    status: Status
    held: bool
    step: int
    total_steps: int | None
    pause_at: int | None
    seconds_per_step: float | None
    peak_bytes: int | None
    seed: int
    value: float | None
    state: str


class Trial(Answer):
    """One configuration with its runs, one for each seed, and the metric over them at a step."""

    trial: int
    changes: dict[str, Any]
    summary: IntervalAnswer | None
    at_step: int | None
    finished: bool
    stopped_early: bool
    runs: list[TrialRun]


class SavedSteps(Answer):
    """What stopping early saved: runs, their steps that were not trained, and the steps of the whole sweep."""

    runs: int
    steps: int
    of: int


class SweepBrief(Answer):
    """A sweep. Times are seconds since the epoch."""

    id: str
    name: str
    owner: str
    created_at: float
    stopped_at: float | None
    ended: bool
    method: str
    metric: str
    direction: str
    runs: int
    statuses: dict[str, int]
    best: Trial | None
    lead: IntervalAnswer | None = Field(description="the difference of the best configuration to the second")
    saved: SavedSteps


class SweepList(Answer):
    """The sweeps, the newest first."""

    sweeps: list[SweepBrief]


class PlannedRun(Answer):
    """A run of the plan: whether it starts and fits into memory, its steps and time, and why it does not start."""

    trial: int
    name: str
    changes: dict[str, Any]
    seed: int
    starts: bool
    fits: bool | None
    peak_bytes: int | None
    steps: int | None
    seconds: float | None
    reason: str
    problems: list[ErrorEntry]


class SweepPlan(Answer):
    """A sweep before its start: how many of its runs start, do not fit and are refused, and the steps and time of all."""

    name: str
    method: str
    metric: str
    total: int
    starting: int
    unfit: int
    refused: int
    steps: int | None
    seconds: float | None
    devices: int
    runs: list[PlannedRun]


class SweepAnswer(SweepBrief):
    """A sweep with its specification, its plan and its trials, the best first."""

    spec: dict[str, Any]
    plan: dict[str, Any]
    trials: list[Trial]


router = JsonRouter()


@router.get("/api/sweeps", **answers(SweepList))
def list_sweeps(limit: Limit = 50, offset: Offset = 0) -> dict[str, Any]:
    """The sweeps, newest first, each with the statuses of its runs and its best configuration."""
    with database.read() as session:
        return {
            "sweeps": [brief(session, sweep) for sweep in sweeps.listing(session=session, limit=limit, offset=offset)]
        }


@router.post("/api/sweeps", status_code=201, openapi_extra=SWEEP_BODY, **answers(SweepAnswer, 201))
def start_sweep(values: Annotated[Any, Body()], key: Key = None) -> dict[str, Any]:
    """Queues the runs of a sweep: those that Start would accept and that fit into memory, all in one transaction.

    Raises:
        ConfigError: the sweep is invalid, or no run can start; answered with 422.
        KeyReused: the Idempotency-Key was sent with another body; answered with 409.
    """
    submission = Submission.of(key, callers.current().name, values) if key else None
    return _document(changes.start_sweep(parse_sweep(values), submission))


@router.post("/api/sweeps/plan", openapi_extra=SWEEP_BODY, **answers(SweepPlan))
def plan_sweep(values: Annotated[Any, Body()]) -> dict[str, Any]:
    """The runs of a sweep before its start: which can start, which fit, how long all take. Queues nothing.

    Raises:
        ConfigError: the sweep is invalid; answered with 422.
    """
    caller = callers.current()
    return plan.as_document(plan.make_plan(parse_sweep(values), caller.allowed, caller.name))


@router.get("/api/sweeps/{sweep_id}", **answers(SweepAnswer))
def show_sweep(sweep_id: str) -> dict[str, Any]:
    """One sweep with its trials, the best first."""
    return _document(sweep_id)


@router.post("/api/sweeps/{sweep_id}/stop", **answers(SweepAnswer))
def stop_sweep(sweep_id: str) -> dict[str, Any]:
    """Requests all runs of a sweep to stop: running ones save a checkpoint first."""
    changes.stop_sweep(sweep_id)
    return _document(sweep_id)


@router.delete("/api/sweeps/{sweep_id}", status_code=204)
def delete_sweep(sweep_id: str) -> None:
    """Deletes a sweep with its runs, which have all ended: results, checkpoints and metrics are lost."""
    changes.delete_sweep(sweep_id)


def _document(sweep_id: str) -> dict[str, Any]:
    with database.read() as session:
        return document(session, sweep_id)

"""Sweeps: their plan before the start, and their trials."""

from typing import Any

from pydantic import Field

from app.web.rest.answers.errors import ErrorEntry
from app.web.rest.answers.form import Answer
from worker.store.tables import Status


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

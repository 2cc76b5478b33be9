"""A sweep before its start: each run checked as Start checks it, its memory forecast, and the time of all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlmodel import Session

from training.chat.rendering_settings import ChatSettings
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.errors import Problem
from training.forecast import gpus
from training.forecast.gpus import Card
from training.model_info.config_json import ModelError
from training.tokens.run_rows import RowLengths
from worker import disk_quota
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.forecasts import forecast as forecasting
from worker.forecasts import shapes
from worker.forecasts.calibration import calibrate
from worker.forecasts.forecast import Setup, estimate_run
from worker.forecasts.row_lengths import count_rows
from worker.forecasts.speed import steps_of
from worker.machine import devices
from worker.runs import checks, pace
from worker.runs.settle import FILES, Settled, settle
from worker.settings import get_settings
from worker.store import database, machines
from worker.store.tables import LOCAL
from worker.store.tables.sweep_values import PlannedRun, SweepPlan, SweepSpec
from worker.sweeps.expand import Candidate, candidates


@dataclass(frozen=True)
class Planned:
    """A run of a sweep before its start. `fits` is None if its memory cannot be forecast; `reason` says why it is left out."""

    candidate: Candidate
    fits: bool | None = None
    peak_bytes: int | None = None
    steps: int | None = None
    seconds: float | None = None
    problems: tuple[Problem, ...] = ()
    reason: str = ""

    @property
    def valid(self) -> bool:
        """True if Start would accept it."""
        return not self.problems


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep before its start; `metric` decides. `steps` and `seconds` are those of all runs that start."""

    spec: SweepSpec
    metric: str
    runs: tuple[Planned, ...]
    steps: int | None
    seconds: float | None
    devices: int

    @property
    def starting(self) -> list[Planned]:
        """The runs that start: valid ones that fit, or with `include_unfit` all valid ones."""
        return [run for run in self.runs if run.valid and (run.fits is not False or self.spec.include_unfit)]


def make_plan(spec: SweepSpec, allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL) -> Plan:
    """Plans a sweep that `owner` would start; queues and stores nothing.

    Raises:
        ConfigError: there are too many runs, or too few configurations for the draws.
    """
    chosen = candidates(spec)
    with disk_quota.measured_once(), database.read() as session:
        card, count = _card(session), _devices(session)
        look = _Look(session, allowed, owner, card)
        runs = tuple(look.planned(candidate) for candidate in chosen)
    first = next((candidate.config for candidate in chosen if candidate.config), None)
    metric = spec.metric or ("eval_loss" if first is None or first.holds_out else "loss")
    plan = Plan(spec, metric, runs, None, None, count)
    steps, seconds = _expected(plan)
    return replace(plan, steps=steps, seconds=seconds)


def as_document(plan: Plan) -> SweepPlan:
    """The plan as a sweep's row holds it."""
    starting = plan.starting
    return SweepPlan(
        name=plan.spec.title,
        method=plan.spec.method.value,
        metric=plan.metric,
        total=len(plan.runs),
        starting=len(starting),
        unfit=sum(run.valid and run.fits is False for run in plan.runs),
        refused=sum(not run.valid for run in plan.runs),
        steps=plan.steps,
        seconds=plan.seconds,
        devices=plan.devices,
        runs=[_row(run, starts=any(run is other for other in starting)) for run in plan.runs],
    )


def _row(run: Planned, *, starts: bool) -> PlannedRun:
    candidate = {name: getattr(run.candidate, name) for name in ("trial", "name", "changes", "seed")}
    values = {name: getattr(run, name) for name in ("fits", "peak_bytes", "steps", "seconds", "reason", "problems")}
    return PlannedRun(**candidate, **values, starts=starts)


_DECIDE_TOKENS = (
    "data", "validation_data", "columns", "model", "revision", "task", "train_on_prompt", "max_length",
)  # fmt: skip


class _Look:
    """Looks at runs one after another; what several share (data, the model's shape) is read once."""

    def __init__(self, session: Session, allowed: AllowedPaths, owner: str, card: Card | None) -> None:
        self._session, self._allowed, self._owner, self._card = session, allowed, owner, card
        self._shape = lru_cache(maxsize=None)(shapes.shape_at)
        self._calibration = calibrate(card)
        self._counted: dict[tuple[Any, ...], RowLengths | None] = {}

    def planned(self, candidate: Candidate) -> Planned:
        if candidate.config is None:
            return _refused(candidate, candidate.problems)
        try:
            settled = settle(candidate.config, self._allowed, self._owner, files=FILES)
        except ConfigError as error:
            return _refused(candidate, error.problems)
        if problems := [*checks.problems(settled), *checks.conflicts(settled)]:
            return _refused(candidate, problems)
        config, rows = settled.config, self._rows(settled.config)
        steps = pace.counted_steps(settled) if rows is None else steps_of(config, rows)
        speed = pace.seconds_per_step(self._session, config, pace.training_rows(settled))
        seconds = steps * speed if steps and speed else None
        return self._forecast(Planned(candidate, steps=steps, seconds=seconds), settled)

    def _rows(self, config: RunConfig) -> RowLengths | None:
        """The tokens of a run's rows, which most runs of a sweep share."""
        key = tuple(getattr(config, name) for name in _DECIDE_TOKENS), ChatSettings.of(config).key
        if key not in self._counted:
            self._counted[key] = count_rows(config)
        return self._counted[key]

    def _forecast(self, run: Planned, settled: Settled) -> Planned:
        config = settled.config
        try:
            shape = shapes.of_run(settled, self._shape)
        except ModelError:
            return replace(run, reason="The memory is unknown: the model's config.json is not on this machine.")
        setup = Setup(config, shape, self._card, self._rows(config), forecasting.host_memory(), self._calibration)
        forecast = estimate_run(setup, advises=False).forecast
        return replace(
            run,
            fits=None if forecast.unknown or forecast.close else forecast.fits,
            peak_bytes=int(forecast.peak_bytes),
            reason=" ".join(forecast.reasons),
        )


def _refused(candidate: Candidate, problems: Sequence[Problem]) -> Planned:
    return Planned(candidate, problems=tuple(problems), reason=str(problems[0]))


def _card(session: Session) -> Card | None:
    """This machine's GPU; without one, the largest GPU that a worker on another machine reports."""
    card = gpus.of_machine(devices.machine())
    if card is not None or not get_settings().broker_url:
        return card
    reported = [
        device
        for machine in machines.listing(session=session)
        for device in machine.devices
        if "/cuda:" in device["name"]
    ]
    largest = max(reported, key=lambda device: int(device["memory_bytes"]), default=None)
    return gpus.like(str(largest["label"]), int(largest["memory_bytes"])) if largest else None


def _devices(session: Session) -> int:
    """The devices that workers report; without a report those of this machine."""
    reported = sum(len(machines.usable_devices(machine)) for machine in machines.listing(session=session))
    return reported or len(devices.own_devices())


def _expected(plan: Plan) -> tuple[int | None, float | None]:
    """Steps and seconds of all runs that start; with halving, of those that the rule lets continue."""
    runs = plan.starting
    if not runs:
        return 0, 0.0
    steps = [run.steps for run in runs]
    shares = _shares(plan.spec, steps) if plan.spec.halves else [1.0] * len(runs)
    if shares is None:
        return None, None
    trained = [step * share for step, share in zip(steps, shares, strict=True) if step is not None]
    total = round(sum(trained)) if len(trained) == len(steps) else None
    jobs = [
        (run.candidate.config.num_processes if run.candidate.config else 1, run.seconds and run.seconds * share)
        for run, share in zip(runs, shares, strict=True)
    ]
    return total, pace.together(jobs, plan.devices)


def _shares(spec: SweepSpec, steps: Sequence[int | None]) -> list[float] | None:
    """The share of its steps that each run trains if the first ones are the best; None if the steps are unknown."""
    if None in steps:
        return None
    totals = [step or 0 for step in steps]
    trained, left, rung = [0] * len(totals), len(totals), spec.min_steps
    while left and any(step > done for step, done in zip(totals[:left], trained, strict=False)):
        for index in range(left):
            trained[index] = min(rung, totals[index])
        left, rung = max(left // spec.reduction_factor, 1), rung * spec.reduction_factor
    return [done / step if step else 1.0 for done, step in zip(trained, totals, strict=True)]


def refuse_empty(plan: Plan) -> None:
    """Refuses a sweep of which no run would start.

    Raises:
        ConfigError: the problems of its first run, or that none fits.
    """
    if plan.starting:
        return
    if problems := next((run.problems for run in plan.runs if run.problems), None):
        raise ConfigError(list(problems))
    reason = next(run.reason for run in plan.runs)
    fix = "Choose settings that need less memory, or set include_unfit to true."
    raise ConfigError([Problem("space", None, f"has no run that fits. {reason}", fix)])

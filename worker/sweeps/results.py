"""What a sweep has found: its trials with their values, the best one, and the steps that early stopping saved."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlmodel import Session

from training.config.fields import settings
from training.config.run_config import Changes
from worker.store import sweeps
from worker.store.tables import Run, Status, Sweep
from worker.store.tables.sweep_values import SweepSpec
from worker.sweeps.advance import state_word, stopped_early
from worker.sweeps.ranking import Interval, difference, interval, sort_key

_SUMMARIZED = {"eval_loss", "eval_perplexity"}  # with load_best_at_end, the summary has those of the result


@dataclass(frozen=True)
class Result:
    """A configuration with its runs. `values` are the runs' by seed; `at_step` is the last step of the fewest trained."""

    trial: int
    changes: Changes
    runs: tuple[Run, ...]
    values: dict[int, float]
    at_step: int
    summary: Interval | None

    @property
    def finished(self) -> bool:
        """True if all its runs that were not refused trained to the end."""
        return all(run.status is Status.FINISHED for run in self.runs)

    @property
    def stopped_early(self) -> bool:
        """True if the sweep stopped one of its runs at a rung."""
        return any(stopped_early(run) for run in self.runs)


@dataclass(frozen=True)
class Results:
    """The state of a sweep. `trials` are sorted: finished ones by their mean, then the others by steps and mean.

    `lead` is the difference between the second and the best, over the seeds that both have.
    """

    sweep: Sweep
    spec: SweepSpec
    metric: str
    trials: tuple[Result, ...]
    lead: Interval | None = None
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def best(self) -> Result | None:
        """The best finished configuration, or while none has finished the best so far."""
        first = next(iter(self.trials), None)
        return first if first and first.summary else None

    @property
    def runs(self) -> list[Run]:
        """All runs, those of the best trial first."""
        return [run for trial in self.trials for run in trial.runs]

    @property
    def ended(self) -> bool:
        """True once all runs have ended."""
        return all(run.status.ended for run in self.runs)

    @property
    def saved_steps(self) -> tuple[int, int, int]:
        """Runs that were stopped early, their steps that were not trained, and the steps of all runs if none was stopped."""
        early = [run for run in self.runs if stopped_early(run)]
        saved = sum(max((run.total_steps or run.step) - run.step, 0) for run in early)
        return len(early), saved, sum(run.total_steps or 0 for run in self.runs)


def results(session: Session, sweep: Sweep) -> Results:
    """The state of a sweep, from its runs."""
    spec = SweepSpec.model_validate(sweep.spec)
    metric = str(sweep.plan["metric"])
    maximize = spec.direction == "maximize"
    runs = sweeps.runs_of(session=session, sweep_ids=[sweep.id])
    last = sweeps.last_values(session=session, run_ids=[run.id for run in runs], metric=metric)
    trials = [
        _result(spec, metric, number, list(group), last)
        for number, group in groupby(runs, key=lambda run: run.trial or 0)
    ]
    trials.sort(key=lambda one: _order(one, maximize=maximize))
    return Results(sweep, spec, metric, tuple(trials), _lead(trials), dict(Counter(map(state_word, runs))))


def _order(result: Result, *, maximize: bool) -> tuple[bool, bool, int, float, int]:
    """Finished before unfinished; among the latter more steps first, since values at different steps do not compare."""
    mean = result.summary.mean if result.summary else None
    return (
        result.summary is None,
        not result.finished,
        0 if result.finished else -result.at_step,
        sort_key(mean, maximize=maximize),
        result.trial,
    )


def _result(
    spec: SweepSpec, metric: str, number: int, group: list[Run], last: dict[str, tuple[int, float | None]]
) -> Result:
    values = {}
    group.sort(key=_seed)
    for run in group:
        value = _value(run, metric, last)
        if value is not None:
            values[_seed(run)] = value
    changes = {name: group[0].config.get(name, settings()[name].default) for name in spec.space}
    steps = min((last[run.id][0] for run in group if run.id in last), default=0)
    return Result(number, changes, tuple(group), values, steps, interval(list(values.values())))


def _seed(run: Run) -> int:
    return int(run.config.get("seed", settings()["seed"].default))


def _value(run: Run, metric: str, last: dict[str, tuple[int, float | None]]) -> float | None:
    """The run's value: of a finished one its summary's, else the last reported one."""
    summary: dict[str, Any] = run.summary or {}
    if run.status is Status.FINISHED and metric in _SUMMARIZED and isinstance(summary.get(metric), float):
        return float(summary[metric])
    return last[run.id][1] if run.id in last else None


def _lead(trials: Sequence[Result]) -> Interval | None:
    """The difference between the two best configurations, if both have finished."""
    if len(trials) < 2 or not (trials[0].finished and trials[1].finished):
        return None
    return difference(trials[0].values, trials[1].values)

"""Continues a sweep with successive halving: decides from the database which paused runs continue and which are stopped.

Supervisors call it when a run of a sweep pauses or ends, and every worker in its rounds. Deciding again changes nothing, so no
decision is lost with the process that was about to make it.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby

from sqlmodel import Session

from worker.store import database, history, sweeps
from worker.store.tables import Run, Status, Sweep
from worker.store.tables.row import whole
from worker.store.tables.sweep_values import SweepSpec
from worker.sweeps.ranking import Contender, Decision, RankState, decide

log = logging.getLogger(__name__)

_MOST_STEPS = 2**31


def advance(sweep_id: str) -> list[str]:
    """Makes the decisions that are due in a sweep; returns the ids of the runs that continue, for a message to the workers."""
    with database.write() as session:
        sweep = sweeps.locked(session=session, sweep_id=sweep_id)
        if not list(whole([sweep])):
            return []
        spec = SweepSpec.model_validate(sweep.spec)
        if not spec.halves or sweep.stopped_at is not None:
            return []
        continued: list[str] = []
        while decision := _due(session, sweep, spec):
            continued += _apply(session, sweep, spec, decision)
        return continued


def after(run_id: str) -> None:
    """Makes the decisions that are due after a run has paused or ended. Does not raise: workers decide again in their rounds."""
    try:
        with database.read() as session:
            run = session.get(Run, run_id)
        if run is not None and run.sweep_id:
            advance(run.sweep_id)
    except Exception:
        log.exception("the sweep of run %s was not advanced", run_id)


def advance_all() -> list[str]:
    """Makes the decisions that are due in all sweeps; returns the ids of the runs that continue."""
    with database.read() as session:
        waiting = sweeps.with_paused_runs(session=session)
    return [run_id for sweep_id in waiting for run_id in advance(sweep_id)]


def rungs(spec: SweepSpec) -> list[int]:
    """The steps at which runs pause, as far as a run may train; a run ends at its own last step."""
    steps = [spec.min_steps]
    while (further := steps[-1] * spec.reduction_factor) < _MOST_STEPS:
        steps.append(further)
    return steps


def stopped_early(run: Run) -> bool:
    """True if the run's sweep stopped it at a rung."""
    return run.status is Status.STOPPED and run.at_rung and run.sweep_id is not None


def state_word(run: Run) -> str:
    """The status of a run of a sweep, with "paused" at a rung and "stopped early" by the sweep."""
    if stopped_early(run):
        return "stopped early"
    return "paused" if _state(run) is RankState.PAUSED else run.status.value


def _due(session: Session, sweep: Sweep, spec: SweepSpec) -> Decision | None:
    runs = sweeps.runs_of(session=session, sweep_ids=[sweep.id])
    for run in runs:
        session.refresh(run)
    decision = decide(
        list(_contenders(session, spec, sweep.plan["metric"], runs)),
        spec.reduction_factor,
        maximize=spec.direction == "maximize",
    )
    return decision if decision.promoted or decision.stopped else None


def _apply(session: Session, sweep: Sweep, spec: SweepSpec, decision: Decision) -> list[str]:
    """Continues and stops the paused runs; returns the ids of those that continue."""
    continued = []
    for run in sweeps.runs_of(session=session, sweep_ids=[sweep.id]):
        if _state(run) is not RankState.PAUSED or run.trial is None:
            continue
        if run.trial in decision.promoted:
            best = f"It is among the best 1/{spec.reduction_factor} at step {run.pause_at:,} of sweep {sweep.name}."
            run.held, run.pause_at = False, decision.promoted[run.trial]
            history.note(session=session, run=run, message=f"Continues. {best}", kind="sweep")
            continued.append(run.id)
        elif run.trial in decision.stopped:
            run.held, run.status, run.finished_at = False, Status.STOPPED, database.now(session=session)
            worse = f"It is not among the best 1/{spec.reduction_factor} at this step of sweep {sweep.name}."
            message = f"Stopped early at step {run.step:,}. {worse} Resume trains it to its last step."
            history.note(session=session, run=run, message=message, kind="stopped")
    session.flush()
    return continued


def _contenders(session: Session, spec: SweepSpec, metric: str, runs: Sequence[Run]) -> Iterator[Contender]:
    steps = rungs(spec)
    values = sweeps.at_steps(session=session, run_ids=[run.id for run in runs], metric=metric, steps=steps)
    for number, group in groupby(runs, key=lambda run: run.trial or 0):
        members = list(group)
        live = [run for run in members if not run.status.ended] or members
        reached = [rung for rung in steps if all(_reached(run, rung) for run in live)]
        pauses = [run.pause_at for run in live]
        yield Contender(
            number,
            min((_state(run) for run in members), key=list(RankState).index),
            None if None in pauses else max(filter(None, pauses), default=None),
            {rung: _mean([values.get((run.id, rung)) for run in live]) for rung in reached},
        )


def _reached(run: Run, rung: int) -> bool:
    """True if the run has the result of this rung: it has paused there, or trained beyond it."""
    if run.step < rung:
        return False
    if run.pause_at is None or run.pause_at > rung:
        return True
    return run.pause_at == rung and (_state(run) is RankState.PAUSED or run.status.ended)


def _state(run: Run) -> RankState:
    if run.status.ended:
        return RankState.ENDED
    if run.status is Status.RUNNING:
        return RankState.RUNNING
    if run.held:
        return RankState.PAUSED if run.at_rung else RankState.HELD
    return RankState.WAITING


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean over the seeds of a configuration; None if one has no finite value."""
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if finite and len(finite) == len(values) else None

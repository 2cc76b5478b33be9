"""Sweeps as plain dictionaries: what `--json` prints, REST returns and the pages are made of. Read-only."""

from typing import Any

from sqlmodel import Session

from worker.store import sweeps
from worker.store.tables import Run, Sweep
from worker.sweeps.advance import state_word
from worker.sweeps.ranking import Interval
from worker.sweeps.results import Result, results

_RUN = ("id", "name", "status", "held", "step", "total_steps", "pause_at", "seconds_per_step", "peak_bytes")


def brief(session: Session, sweep: Sweep) -> dict[str, Any]:
    """A sweep as `lathe sweep list` shows it. Times are seconds since the epoch."""
    found = results(session, sweep)
    early, saved, whole = found.saved_steps
    return {
        "id": sweep.id,
        "name": sweep.name,
        "owner": sweep.owner,
        "created_at": sweep.created_at,
        "stopped_at": sweep.stopped_at,
        "ended": found.ended,
        "method": found.spec.method.value,
        "metric": found.metric,
        "direction": found.spec.direction,
        "runs": len(found.runs),
        "statuses": found.statuses,
        "best": _trial(found.best) if found.best else None,
        "lead": _interval(found.lead),
        "saved": {"runs": early, "steps": saved, "of": whole},
    }


def document(session: Session, sweep_id: str) -> dict[str, Any]:
    """What is known of a sweep: as `brief`, its `spec`, `plan` and `trials`, the best first.

    Raises:
        SweepNotFound: no sweep has this id.
    """
    sweep = sweeps.get(session=session, sweep_id=sweep_id)
    found = results(session, sweep)
    trials = [_trial(one) for one in found.trials]
    return brief(session, sweep) | {"spec": sweep.spec, "plan": sweep.plan, "trials": trials}


def _trial(one: Result) -> dict[str, Any]:
    return {
        "trial": one.trial,
        "changes": one.changes,
        "summary": _interval(one.summary),
        "at_step": one.at_step,
        "finished": one.finished,
        "stopped_early": one.stopped_early,
        "runs": [_run(run, one) for run in one.runs],
    }


def _run(run: Run, one: Result) -> dict[str, Any]:
    seed = int(run.config.get("seed", 0))
    more = {"seed": seed, "value": one.values.get(seed), "state": state_word(run)}
    return run.model_dump(mode="json", include=set(_RUN)) | more


def _interval(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else vars(found) | {"includes_zero": found.includes_zero}

"""REST routes of sweeps: plan, start, list, show and stop (docs/sweeps.md)."""

from typing import Annotated, Any

from fastapi import Body

from app.access import callers
from app.access.permissions import OwnSweep
from app.documents.sweep import SweepAnswer, SweepList, brief, document
from app.web.rest.openapi import SWEEP_BODY
from app.web.rest.routing import JsonRouter, Key, Limit, Offset, Reading
from worker.store import database, sweeps
from worker.store.submissions import Submission
from worker.store.tables.sweep_values import SweepPlan
from worker.sweeps import lifecycle, plan
from worker.sweeps.spec import parse_sweep

router = JsonRouter()


@router.get("/api/sweeps")
def list_sweeps(session: Reading, limit: Limit = 50, offset: Offset = 0) -> SweepList:
    """The sweeps, newest first, each with the statuses of its runs and its best configuration."""
    listed = sweeps.listing(session=session, limit=limit, offset=offset)
    return SweepList(sweeps=[brief(session, sweep) for sweep in listed])


@router.post("/api/sweeps", status_code=201, openapi_extra=SWEEP_BODY)
def start_sweep(values: Annotated[Any, Body()], key: Key = None) -> SweepAnswer:
    """Queues the runs of a sweep: those that Start would accept and that fit into memory, all in one transaction."""
    caller, spec = callers.current(), parse_sweep(values)
    submission = Submission.of(key, caller.name, values) if key else None
    return _document(lifecycle.start(spec, allowed=caller.allowed, owner=caller.name, submission=submission).id)


@router.post("/api/sweeps/plan", openapi_extra=SWEEP_BODY)
def plan_sweep(values: Annotated[Any, Body()]) -> SweepPlan:
    """The runs of a sweep before its start: which can start, which fit, how long all take. Queues nothing."""
    caller = callers.current()
    planned = plan.make_plan(parse_sweep(values), caller.allowed, caller.name)
    return plan.as_document(planned)


@router.get("/api/sweeps/{sweep_id}")
def show_sweep(sweep_id: str, session: Reading) -> SweepAnswer:
    """One sweep with its trials, the best first."""
    return document(session, sweep_id)


@router.post("/api/sweeps/{sweep_id}/stop")
def stop_sweep(own: OwnSweep) -> SweepAnswer:
    """Requests all runs of a sweep to stop: running ones save a checkpoint first."""
    lifecycle.stop(own)
    return _document(own)


@router.delete("/api/sweeps/{sweep_id}", status_code=204)
def delete_sweep(own: OwnSweep) -> None:
    """Deletes a sweep with its runs, which have all ended: results, checkpoints and metrics are lost."""
    lifecycle.delete(own)


def _document(sweep_id: str) -> SweepAnswer:
    with database.read() as session:
        return document(session, sweep_id)

"""REST routes of sweeps: plan, start, list, show and stop (docs/sweeps.md)."""

from typing import Annotated, Any

from fastapi import Body, Query, Response

from app.access import callers, changes
from app.documents.sweep import brief, document
from app.web.rest.answers.form import answers
from app.web.rest.answers.sweeps import SweepAnswer, SweepList, SweepPlan
from app.web.rest.json_route import JsonRouter
from app.web.rest.openapi import SWEEP_BODY
from app.web.rest.parameters import Key
from worker.store import database, sweeps
from worker.store.submissions import Submission
from worker.sweeps import plan
from worker.sweeps.spec import parse_sweep

router = JsonRouter()


@router.get("/api/sweeps", **answers(SweepList))
def list_sweeps(limit: Annotated[int, Query(ge=1, le=200)] = 50) -> dict[str, Any]:
    """The sweeps, newest first, each with the statuses of its runs and its best configuration."""
    with database.read() as session:
        return {"sweeps": [brief(session, sweep) for sweep in sweeps.listing(session=session, limit=limit)]}


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
    return plan.as_document(plan.make_plan(parse_sweep(values), caller.reach, caller.name))


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
def delete_sweep(sweep_id: str) -> Response:
    """Deletes a sweep with its runs, which have all ended: results, checkpoints and metrics are lost."""
    changes.delete_sweep(sweep_id)
    return Response(status_code=204)


def _document(sweep_id: str) -> dict[str, Any]:
    with database.read() as session:
        return document(session, sweep_id)

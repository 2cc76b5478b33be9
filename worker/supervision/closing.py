"""Stores an attempt's outcome: the run ends, or returns to the queue while attempts are left."""

from dataclasses import replace
from typing import Literal

from sqlmodel import Session

from worker.store import claims
from worker.store.tables import Run, Status
from worker.supervision import machine_faults
from worker.supervision.outcome import Verdict


def close(
    *, session: Session, run: Run, verdict: Verdict, max_attempts: int, counted_as: Literal["failed", "lost"] = "failed"
) -> bool:
    """Ends the run's current attempt and frees its devices. False if the attempt is no longer the current one."""
    if machine_faults.put_gpus_aside(session=session, run=run, error=verdict.error, reason=verdict.reason):
        verdict = replace(verdict, retry=True)
    if verdict.machine:
        machine_faults.count(session=session, run=run, name=verdict.machine, reason=verdict.reason)
    if verdict.retry:
        number = claims.failed_attempts(session=session, run=run) + 1
        if number < max_attempts:
            reason = f"Attempt {number} of {max_attempts} ended: {verdict.reason} {verdict.goes_on}".strip()
            return claims.requeue(
                session=session, run_id=run.id, attempt=run.attempt, reason=reason, outcome=counted_as
            )
        verdict = _given_up(verdict, number)
    if verdict.step_down:
        run.stepped_down = run.stepped_down | verdict.step_down
        session.add(run)
    if verdict.status is Status.QUEUED:
        outcome = "paused" if verdict.paused else "requeued"
        return claims.requeue(
            session=session, run_id=run.id, attempt=run.attempt, reason=verdict.reason, outcome=outcome
        )
    return claims.finish(
        session=session,
        run_id=run.id,
        attempt=run.attempt,
        status=verdict.status,
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        error=verdict.error,
        summary=verdict.summary,
    )


def _given_up(verdict: Verdict, number: int) -> Verdict:
    if number == 1:
        return verdict
    attempts = f"All {number} attempts failed."
    error = verdict.error and verdict.error | {"message": f"{verdict.error['message']} {attempts}"}
    return replace(verdict, reason=f"{verdict.reason} {attempts}", error=error)

"""Claims: takes a run from the queue, ends it, returns it to the queue. Its holder keeps it by a lease (worker/store/work.py)."""

from typing import Any

from sqlalchemy import null, update
from sqlmodel import Session, col, func, select

from training.config.fields import in_words
from training.redaction import redact, redact_all
from training.run_folder.events import CheckpointSaved
from worker.store import database, history, nodes, outbox, prompt_sets, totals
from worker.store.jobs import open_for
from worker.store.tables import Attempt, Event, Request, Run, RunEvent, Status
from worker.store.waiting import counts_as_waiting
from worker.store.work import RUN

_LASTED = func.coalesce(database.clock() - col(Run.working_since), 0.0)  # seconds of the attempt that ends
NOT_HELD: dict[str, Any] = {
    "request": None,
    "devices": [],
    "phase": "",
    "phase_done": None,
    "phase_total": None,
    "worked_seconds": col(Run.worked_seconds) + _LASTED,
    "working_since": None,
}


CLAIMED = "starting supervisor"
"""The phase between claim and adoption: a worker holds the run, its supervisor is starting."""


def claim(
    *,
    session: Session,
    run_id: str,
    owner: str,
    devices: list[str],
    lease_seconds: float,
    job_id: str | None = None,
    placed: dict[str, Any] | None = None,
) -> Run | None:
    """Claims a queued run and its devices, both or neither.

    Args:
        owner: The holder, as `host:pid:start`.
        devices: `host/cuda:0`, ..., leased until the run ends or is requeued.
        job_id: The engine's job that claims the run; a run that another job was submitted for is not claimed. Its devices count
            to the owner's quota since it was submitted.
        placed: Settings that this attempt has instead of its own, because machines are missing.

    Returns:
        The run with its next attempt number, or None if it is not queued, is held, its owner may use no more
        devices, or a device is in use.
    """
    taken: dict[str, Any] = NOT_HELD | {
        "status": Status.RUNNING,
        "attempt": Run.attempt + 1,
        "devices": devices,
        "placed": placed or {},
        "started_at": func.coalesce(col(Run.started_at), database.clock()),
        "working_since": database.clock(),
        "finished_at": None,
        "phase": CLAIMED,
        "error": null(),
    }
    condition = [col(Run.id) == run_id, counts_as_waiting(), ~nodes.unfinished(run_id)]
    if job_id:
        condition.append(open_for(job_id))
        taken["job_id"] = job_id
    taken |= {"holder": owner, "lease_seconds": lease_seconds, "leased": devices, "counted": not job_id}
    run = RUN.claim(session, *condition, **taken)
    if run is None:
        return None
    host, now = owner.split(":", 1)[0], database.now(session=session)
    attempt = Attempt(run_id=run.id, number=run.attempt, host=host, devices=devices, started_at=now)
    attempt.stepped_down = run.stepped_down
    session.add(attempt)
    changed = run.stepped_down | run.placed
    how = f" with {in_words(changed)}" if changed else ""
    message = f"Attempt {run.attempt} starts on {', '.join(devices)}{how}."
    history.note(session=session, run=run, message=message, kind="attempt")
    return run


def adopted(run: Run) -> bool:
    """True if a supervisor holds the run; before that, the worker that claimed it does."""
    return run.phase != CLAIMED


def finish(
    *,
    session: Session,
    run_id: str,
    attempt: int,
    status: Status,
    reason: str = "",
    exit_code: int | None = None,
    error: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> bool:
    """Ends a run as finished, failed, stopped or diverged, and frees its devices. False if the attempt is not current."""
    values = NOT_HELD | {"status": status, "finished_at": database.clock()}
    values |= {"error": redact_all(error)} if error else {}
    run = RUN.end(session, (run_id, attempt), **values)
    if run is None:
        return False
    if summary:
        run.summary = totals.over_attempts(session=session, run=run, summary=summary)
        session.add(run)
        session.flush()
    _end_attempt(session, run, outcome=status.value, reason=reason, exit_code=exit_code)
    level = "error" if status in (Status.FAILED, Status.DIVERGED) else "info"
    message = f"{status.value.capitalize()}. {reason}".strip()
    history.note(session=session, run=run, message=message, level=level, kind=status.value)
    outbox.enqueue(session=session, run=run, event=Event(status.value))
    if status is Status.FINISHED:
        prompt_sets.ask_new_result(session=session, run=run)
    return True


def requeue(
    *,
    session: Session,
    run_id: str,
    attempt: int,
    reason: str,
    outcome: str = "requeued",
    summary: dict[str, Any] | None = None,
) -> bool:
    """Returns a run to its old place in the queue and frees its devices; a run with a stop request is stopped instead.

    `summary` is that of its result, if only what follows is left; then it is finished by a stop request.

    `outcome` is requeued, paused, starved, lost or failed; the last two count towards the limit. A paused run is held until its
    sweep decides (worker/sweeps/advance.py). False if the attempt is not current.
    """
    # Locked first: a stop request cannot arrive in between.
    held = session.exec(select(Run.request).where(*RUN.current((run_id, attempt))).with_for_update()).first()
    if held is Request.STOP:
        status = Status.STOPPED if summary is None else Status.FINISHED
        return finish(session=session, run_id=run_id, attempt=attempt, status=status, reason=reason, summary=summary)
    paused = outcome == "paused"
    values = NOT_HELD | ({} if summary is None else {"summary": summary})
    run = RUN.end(session, (run_id, attempt), **values, status=Status.QUEUED, **({"held": True} if paused else {}))
    if run is None:
        return False
    _end_attempt(session, run, outcome=outcome, reason=reason)
    kind = "paused" if paused else "requeued"
    level = "info" if outcome in ("requeued", "paused") else "warning"
    message = f"{kind.capitalize()}. {reason}"
    history.note(session=session, run=run, message=message, level=level, kind=kind)
    return True


def failed_attempts(*, session: Session, run: Run) -> int:
    """The number of lost or failed attempts since a user queued or resumed the run, or since the one that saved its newest
    checkpoint (which counts); there is a limit.

    A long run on many machines loses some of them again and again. Only a run that comes no further has to fail.
    """
    # By number, not by time: clocks may be set back.
    resumed = select(func.coalesce(func.max(RunEvent.attempt), 0)).where(
        RunEvent.run_id == run.id, RunEvent.kind == "queued"
    )
    saved = select(RunEvent.attempt).where(RunEvent.run_id == run.id, RunEvent.kind == CheckpointSaved.kind)
    furthest = saved.order_by(col(RunEvent.step).desc(), col(RunEvent.attempt)).limit(1)
    statement = select(func.count()).where(
        Attempt.run_id == run.id,
        Attempt.number > resumed.scalar_subquery(),
        Attempt.number >= func.coalesce(furthest.scalar_subquery(), 0),
        col(Attempt.outcome).in_(("lost", "failed")),
    )
    return session.exec(statement).one()


def was_starved(*, session: Session, run_id: str, attempt: int) -> None:
    """Corrects the outcome of an attempt that was declared lost while its supervisor was alive but late."""
    mine = col(Attempt.run_id) == run_id, col(Attempt.number) == attempt, col(Attempt.outcome) == "lost"
    session.exec(update(Attempt).where(*mine).values(outcome="starved"))


def _end_attempt(session: Session, run: Run, *, outcome: str, reason: str, exit_code: int | None = None) -> None:
    current = col(Attempt.run_id) == run.id, col(Attempt.number) == run.attempt
    ended = {"ended_at": database.clock(), "outcome": outcome, "reason": redact(reason), "exit_code": exit_code}
    session.exec(update(Attempt).where(*current).values(**ended))

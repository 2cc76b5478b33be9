"""Claims: takes a run from the queue, holds it by a lease, and returns it.

A run has one holder at a time. Each change of holder is one conditional UPDATE, so that only one of several concurrent tries
succeeds. `attempt` counts the claims; holders of older attempts are refused.
"""

from typing import Any

from sqlalchemy import ColumnElement, null, update
from sqlmodel import Session, col, delete, func, select

from training.config.fields import in_words
from training.redaction import redact, redact_all
from training.run_folder.events import CheckpointSaved
from worker.store import database, history, nodes, quotas
from worker.store.jobs import open_for
from worker.store.notifications import outbox
from worker.store.playground import new_results
from worker.store.tables import Attempt, DeviceLease, Event, Request, Run, RunEvent, Status
from worker.store.waiting import counts_as_waiting

NOT_HELD: dict[str, Any] = {
    "lease_owner": None,
    "lease_expires_at": None,
    "request": None,
    "devices": [],
    "phase": "",
    "phase_done": None,
    "phase_total": None,
}


CLAIMED = "starting supervisor"
"""The phase between claim and adoption: a worker holds the run, its supervisor is starting."""


class LeaseLost(RuntimeError):  # noqa: N818
    """The caller no longer holds the run: another process does, or it has ended. Stop its training."""


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
    taken = NOT_HELD | {
        "status": Status.RUNNING,
        "attempt": Run.attempt + 1,
        "lease_owner": owner,
        "lease_expires_at": database.clock() + lease_seconds,
        "devices": devices,
        "placed": placed or {},
        "started_at": func.coalesce(col(Run.started_at), database.clock()),
        "finished_at": None,
        "phase": CLAIMED,
        "error": null(),
        "summary": null(),
    }
    condition = [col(Run.id) == run_id, counts_as_waiting(), ~nodes.unfinished(run_id)]
    if job_id:
        condition.append(open_for(job_id))
        taken["job_id"] = job_id
    with session.begin_nested() as savepoint:
        run = _change(session, *condition, **taken)
        allowed = run is not None and (job_id or quotas.keeps_devices(session=session, owner=run.owner))
        if run is None or not allowed or not _lease(session, run, devices):
            savepoint.rollback()
            return None
    host, now = owner.split(":", 1)[0], database.now(session=session)
    attempt = Attempt(run_id=run.id, number=run.attempt, host=host, devices=devices, started_at=now)
    attempt.stepped_down = run.stepped_down
    session.add(attempt)
    changed = run.stepped_down | run.placed
    how = f" with {in_words(changed)}" if changed else ""
    message = f"Attempt {run.attempt} starts on {', '.join(devices)}{how}."
    history.note(session=session, run_id=run.id, attempt=run.attempt, message=message, kind="attempt")
    return run


def adopt(*, session: Session, run_id: str, attempt: int, owner: str, lease_seconds: float) -> bool:
    """Hands the claim over to `owner`, the supervisor. False if the attempt is no longer the current one."""
    taken = {"lease_owner": owner, "lease_expires_at": database.clock() + lease_seconds, "phase": "starting"}
    return _change(session, *_held(run_id, attempt), **taken) is not None


def adopted(run: Run) -> bool:
    """True if a supervisor holds the run; before that, the worker that claimed it does."""
    return run.phase != CLAIMED


def renew(*, session: Session, run_id: str, attempt: int, owner: str, lease_seconds: float) -> Request | None:
    """Extends the lease to `lease_seconds` from now, and returns the current request.

    Raises:
        LeaseLost: `owner` no longer holds the run.
    """
    expires = database.clock() + lease_seconds
    run = _change(session, *_held(run_id, attempt), col(Run.lease_owner) == owner, lease_expires_at=expires)
    if run is None:
        raise LeaseLost(f"Run {run_id}, attempt {attempt}, is no longer held by {owner}.")
    return run.request


def seize(*, session: Session, run: Run, owner: str, expired: bool, lease_seconds: float) -> Run | None:
    """Takes a lost run from its holder, whose renewals then fail; `owner` kills what is left and requeues the run.

    None if it has another holder by now, or, with `expired`, if its holder has renewed in time.
    """
    condition = [*_held(run.id, run.attempt), col(Run.lease_owner) == run.lease_owner]
    if expired:
        condition.append(col(Run.lease_expires_at) < database.clock())
    expires = database.clock() + lease_seconds
    return _change(session, *condition, lease_owner=owner, lease_expires_at=expires)


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
    values |= {"summary": summary} if summary else {}
    run = _change(session, *_held(run_id, attempt), **values)
    if run is None:
        return False
    _release(session, run_id, attempt, outcome=status.value, reason=reason, exit_code=exit_code)
    level = "error" if status in (Status.FAILED, Status.DIVERGED) else "info"
    message = f"{status.value.capitalize()}. {reason}".strip()
    history.note(session=session, run_id=run_id, attempt=attempt, message=message, level=level, kind=status.value)
    outbox.tell(session=session, run=run, event=Event(status.value))
    if status is Status.FINISHED:
        new_results.ask(session=session, run=run)
    return True


def requeue(*, session: Session, run_id: str, attempt: int, reason: str, outcome: str = "requeued") -> bool:
    """Returns a run to its old place in the queue and frees its devices; a run with a stop request is stopped instead.

    `outcome` is requeued, paused, starved, lost or failed; the last two count towards the limit. A paused run is held until its
    sweep decides (worker/sweeps/advance.py). False if the attempt is not current.
    """
    # Locked first: a stop request cannot arrive in between.
    held = session.exec(select(Run.request).where(*_held(run_id, attempt)).with_for_update()).first()
    if held is Request.STOP:
        return finish(session=session, run_id=run_id, attempt=attempt, status=Status.STOPPED, reason=reason)
    paused = outcome == "paused"
    if _change(session, *_held(run_id, attempt), **NOT_HELD, status=Status.QUEUED, held=paused) is None:
        return False
    _release(session, run_id, attempt, outcome=outcome, reason=reason)
    kind = "paused" if paused else "requeued"
    level = "info" if outcome in ("requeued", "paused") else "warning"
    message = f"{kind.capitalize()}. {reason}"
    history.note(session=session, run_id=run_id, attempt=attempt, message=message, level=level, kind=kind)
    return True


def lost(*, session: Session) -> list[Run]:
    """Running runs whose lease has expired, locked: requeue them in the same session, or they may be renewed."""
    expired = col(Run.lease_expires_at) < database.clock()
    statement = select(Run).where(Run.status == Status.RUNNING, expired)
    return list(session.exec(statement.with_for_update(skip_locked=True)))


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


def _held(run_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return (col(Run.id) == run_id, col(Run.attempt) == attempt, col(Run.status) == Status.RUNNING)


def _change(session: Session, *condition: ColumnElement[bool], **values: Any) -> Run | None:
    """Runs one conditional UPDATE; returns the new run, or None if the condition does not hold."""
    session.flush()
    statement = update(Run).where(*condition).values(**values).returning(Run)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.exec(statement, execution_options=options).scalars().one_or_none()


def _lease(session: Session, run: Run, devices: list[str]) -> bool:
    """Leases the devices; False if one is in use. In sorted order, so that two claims cannot deadlock."""
    rows = [{"device": device, "run_id": run.id, "attempt": run.attempt} for device in sorted(devices)]
    statement = database.insert(session, DeviceLease).values(rows).on_conflict_do_nothing()
    return len(session.exec(statement.returning(col(DeviceLease.device))).all()) == len(rows)


def _release(
    session: Session, run_id: str, attempt: int, *, outcome: str, reason: str, exit_code: int | None = None
) -> None:
    training = col(DeviceLease.run_id) == run_id, col(DeviceLease.evaluation_id).is_(None)
    session.exec(delete(DeviceLease).where(*training, col(DeviceLease.attempt) <= attempt))
    ended = {"ended_at": database.clock(), "outcome": outcome, "reason": redact(reason), "exit_code": exit_code}
    session.exec(update(Attempt).where(col(Attempt.run_id) == run_id, col(Attempt.number) == attempt).values(**ended))

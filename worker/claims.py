"""Who trains a run: claiming it from the queue, holding it by a lease, giving it back.

A run has one holder at a time, and each change of holder is one UPDATE with a condition, so that of many who try at the
same moment one succeeds. `attempt` counts the claims; who holds an older attempt is refused from then on.
"""

from typing import Any

from sqlalchemy import ColumnElement, null, update
from sqlmodel import Session, col, delete, func, select

from training.step_down import in_words
from worker import database, history
from worker.logs import redact, redact_all
from worker.models import Attempt, DeviceLease, Request, Run, RunEvent, Status

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
"""The phase of a run between its claim and its adoption: a worker holds it, and no supervisor yet."""


class LeaseLost(RuntimeError):  # noqa: N818
    """The run is not held by who asks any more: it was given to another, or ended. Its training must be stopped."""


def claim(*, session: Session, run_id: str, owner: str, devices: list[str], lease_seconds: float) -> Run | None:
    """Takes a queued run and its devices, both or neither.

    Args:
        owner: `host:pid:start`, who holds it.
        devices: `host/cuda:0`, ..., in use by this run until it ends or goes back to the queue.

    Returns:
        The run with its attempt counted up, or None where it is not queued or a device is in use.
    """
    taken = NOT_HELD | {
        "status": Status.RUNNING,
        "attempt": Run.attempt + 1,
        "lease_owner": owner,
        "lease_expires_at": database.clock() + lease_seconds,
        "devices": devices,
        "started_at": func.coalesce(col(Run.started_at), database.clock()),
        "finished_at": None,
        "phase": CLAIMED,
        "error": null(),
        "summary": null(),
    }
    with session.begin_nested() as savepoint:
        run = _change(session, col(Run.id) == run_id, col(Run.status) == Status.QUEUED, **taken)
        if run is None or not _lease(session, run, devices):
            savepoint.rollback()
            return None
    host, now = owner.split(":", 1)[0], database.now(session=session)
    attempt = Attempt(run_id=run.id, number=run.attempt, host=host, devices=devices, started_at=now)
    attempt.stepped_down = run.stepped_down
    session.add(attempt)
    how = f" with {in_words(run.stepped_down)}" if run.stepped_down else ""
    message = f"Attempt {run.attempt} begins on {', '.join(devices)}{how}."
    history.note(session=session, run_id=run.id, attempt=run.attempt, message=message, kind="attempt")
    return run


def adopt(*, session: Session, run_id: str, attempt: int, owner: str, lease_seconds: float) -> bool:
    """Hands the claim over to `owner`, the supervisor. False where the attempt is no longer the current one."""
    taken = {"lease_owner": owner, "lease_expires_at": database.clock() + lease_seconds, "phase": "starting"}
    return _change(session, *_held(run_id, attempt), **taken) is not None


def adopted(run: Run) -> bool:
    """Whether the holder of a running run is a supervisor; until then it is the worker that claimed it."""
    return run.phase != CLAIMED


def renew(*, session: Session, run_id: str, attempt: int, owner: str, lease_seconds: float) -> Request | None:
    """Holds the run for `lease_seconds` from now, and returns what is asked of it.

    Raises:
        LeaseLost: the run is not `owner`'s any more.
    """
    expires = database.clock() + lease_seconds
    run = _change(session, *_held(run_id, attempt), col(Run.lease_owner) == owner, lease_expires_at=expires)
    if run is None:
        raise LeaseLost(f"Run {run_id}, attempt {attempt}, is no longer held by {owner}.")
    return run.request


def seize(*, session: Session, run: Run, owner: str, expired: bool, lease_seconds: float) -> Run | None:
    """Takes a lost run from its holder, who can renew no more; `owner` ends what is left of it and gives it back.

    None where it has another holder by now, or, with `expired`, where its holder has renewed in time.
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
    """Ends a run as finished, failed or stopped, and frees its devices. False where the attempt is not current."""
    values = NOT_HELD | {"status": status, "finished_at": database.clock()}
    values |= {"error": redact_all(error)} if error else {}
    values |= {"summary": summary} if summary else {}
    if _change(session, *_held(run_id, attempt), **values) is None:
        return False
    _release(session, run_id, attempt, outcome=status.value, reason=reason, exit_code=exit_code)
    level = "error" if status is Status.FAILED else "info"
    message = f"{status.value.capitalize()}. {reason}".strip()
    history.note(session=session, run_id=run_id, attempt=attempt, message=message, level=level, kind=status.value)
    return True


def requeue(*, session: Session, run_id: str, attempt: int, reason: str, outcome: str = "requeued") -> bool:
    """Gives a run back to the queue, at its old place, and frees its devices; one that was asked to stop is stopped.

    `outcome` is requeued, starved, lost or failed; the last two count against a cap. False where the attempt is not current.
    """
    # Locked first: the Stop that is looked for cannot come in between.
    held = session.exec(select(Run.request).where(*_held(run_id, attempt)).with_for_update()).first()
    if held is Request.STOP:
        return finish(session=session, run_id=run_id, attempt=attempt, status=Status.STOPPED, reason=reason)
    if _change(session, *_held(run_id, attempt), **NOT_HELD, status=Status.QUEUED) is None:
        return False
    _release(session, run_id, attempt, outcome=outcome, reason=reason)
    message = f"Back to the queue: {reason}"
    level = "info" if outcome == "requeued" else "warning"
    history.note(session=session, run_id=run_id, attempt=attempt, message=message, level=level, kind="requeued")
    return True


def lost(*, session: Session) -> list[Run]:
    """Running runs whose lease has run out, locked: requeue them within the same session, or a renewal may come first."""
    expired = col(Run.lease_expires_at) < database.clock()
    statement = select(Run).where(Run.status == Status.RUNNING, expired)
    return list(session.exec(statement.with_for_update(skip_locked=True)))


def failed_attempts(*, session: Session, run: Run) -> int:
    """Attempts that were lost or failed since a person queued or resumed the run; a cap is held against it."""
    # By their numbers: times are those of a clock that may be set back.
    resumed = select(func.coalesce(func.max(RunEvent.attempt), 0)).where(
        RunEvent.run_id == run.id, RunEvent.kind == "queued"
    )
    statement = select(func.count()).where(
        Attempt.run_id == run.id,
        Attempt.number > resumed.scalar_subquery(),
        col(Attempt.outcome).in_(("lost", "failed")),
    )
    return session.exec(statement).one()


def was_starved(*, session: Session, run_id: str, attempt: int) -> None:
    """Corrects the outcome of an attempt that another machine took for lost: its supervisor lived and was late."""
    mine = col(Attempt.run_id) == run_id, col(Attempt.number) == attempt, col(Attempt.outcome) == "lost"
    session.exec(update(Attempt).where(*mine).values(outcome="starved"))


def _held(run_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return (col(Run.id) == run_id, col(Run.attempt) == attempt, col(Run.status) == Status.RUNNING)


def _change(session: Session, *condition: ColumnElement[bool], **values: Any) -> Run | None:
    """One conditional UPDATE; the run as it is now, or None where the condition does not hold."""
    session.flush()
    statement = update(Run).where(*condition).values(**values).returning(Run)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.exec(statement, execution_options=options).scalars().one_or_none()


def _lease(session: Session, run: Run, devices: list[str]) -> bool:
    """Marks the devices as in use; False where one is already. In their order, so that two claims cannot deadlock."""
    rows = [{"device": device, "run_id": run.id, "attempt": run.attempt} for device in sorted(devices)]
    statement = database.insert(session, DeviceLease).values(rows).on_conflict_do_nothing()
    return len(session.exec(statement.returning(col(DeviceLease.device))).all()) == len(rows)


def _release(
    session: Session, run_id: str, attempt: int, *, outcome: str, reason: str, exit_code: int | None = None
) -> None:
    session.exec(delete(DeviceLease).where(col(DeviceLease.run_id) == run_id, col(DeviceLease.attempt) <= attempt))
    ended = {"ended_at": database.clock(), "outcome": outcome, "reason": redact(reason), "exit_code": exit_code}
    session.exec(update(Attempt).where(col(Attempt.run_id) == run_id, col(Attempt.number) == attempt).values(**ended))

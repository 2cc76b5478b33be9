"""The engine's job of a run: which one was submitted for it, and its state for pages.

A job's id is written in two steps, so that a crash between them submits nothing twice: `reserve` marks the run, the job is
submitted, `record` writes its id. A mark that was left behind is resolved by looking for the job by its name.
"""

from typing import Any

from sqlalchemy import ColumnElement, or_
from sqlmodel import Session, col, select

from worker.engine_traits import ENGINES
from worker.store import database, history, outbox, quotas
from worker.store.tables import Event, Run, Status
from worker.store.tables.runs import ENGINE
from worker.store.work import RUN

_MARK = "submitting "
_CANCELLED_HERE, _RESERVED_AT = "cancelled_here", "reserved_at"
EXCLUDED = "excluded"
"""The nodes that the job of a run on several nodes must not get."""


def waiting_or_running(*, session: Session) -> list[Run]:
    """Every run that has not ended."""
    return list(session.exec(select(Run).where(col(Run.status).in_((Status.QUEUED, Status.RUNNING)))))


def reserve(*, session: Session, run: Run, owner: str) -> Run | None:
    """Marks a queued run without a job as being submitted by the process `owner`; None if another process was faster, or
    the run's owner may use no more devices.
    """
    mine = col(Run.id) == run.id, col(Run.attempt) == run.attempt, col(Run.job_id).is_(None)
    job = (run.job or {}) | {_RESERVED_AT: database.now(session=session), ENGINE: run.engine.value}
    values = {"job_id": f"{_MARK}{owner}", "job": job}
    with session.begin_nested() as savepoint:
        reserved = database.change(session, Run, *mine, col(Run.status) == Status.QUEUED, **values)
        if reserved is None or not quotas.keeps_devices(session=session, owner=reserved.owner):
            savepoint.rollback()
            return None
    return reserved


def reserved_for(*, session: Session, run: Run) -> float:
    """For how many seconds the run has been marked as being submitted."""
    return database.now(session=session) - float((run.job or {}).get(_RESERVED_AT, 0.0))


def unreserve(*, session: Session, run_id: str, owner: str) -> None:
    """Removes the mark of `owner`: nothing was submitted."""
    mine = col(Run.id) == run_id, col(Run.job_id) == f"{_MARK}{owner}"
    database.change(session, Run, *mine, job_id=None)


def reserved_by(run: Run) -> str | None:
    """The process that submits a job for the run just now, or was killed while it did."""
    return run.job_id.removeprefix(_MARK) if run.job_id and run.job_id.startswith(_MARK) else None


def submitted_id(run: Run) -> str | None:
    """The id of the run's job; None if it has none yet."""
    return None if reserved_by(run) else run.job_id


def record(*, session: Session, run: Run, job_id: str, job: dict[str, Any]) -> None:
    """Writes the id of the job that was submitted for the run, and its state; a run that has a job already keeps it."""
    if database.change(
        session, Run, col(Run.id) == run.id, open_for(job_id), job_id=job_id, job=job | {ENGINE: run.engine.value}
    ):
        message = f"Submitted as {ENGINES[run.engine].label} job {job_id}."
        history.note(session=session, run=run, message=message, kind="job")


def describe(*, session: Session, run: Run, job: dict[str, Any]) -> None:
    """Writes the state of the run's job over what is `kept`, if it is still that job."""
    mine = col(Run.id) == run.id, col(Run.job_id) == run.job_id
    current = session.exec(select(Run).where(*mine).with_for_update()).one_or_none()
    if current is not None:
        current.job = kept(current) | job


def kept(run: Run) -> dict[str, Any]:
    """What Lathe itself wrote about the run's job: its engine, how many jobs were submitted in vain, the nodes that it must not
    get, and that Lathe cancelled it."""
    own = ("tries", ENGINE, EXCLUDED, _CANCELLED_HERE)
    return {name: value for name, value in (run.job or {}).items() if name in own}


def cancelled_here(run: Run) -> bool:
    """True if Lathe, and not a user, cancelled the run's job; the run then continues with another job."""
    return bool((run.job or {}).get(_CANCELLED_HERE))


def cancelling(*, session: Session, run: Run) -> None:
    """Says that Lathe cancels the run's job."""
    mine = col(Run.id) == run.id, col(Run.job_id) == run.job_id
    database.change(session, Run, *mine, job=(run.job or {}) | {_CANCELLED_HERE: True})


def forget(*, session: Session, run_id: str, job_id: str, job: dict[str, Any] | None = None) -> bool:
    """Says that the queued run has no job any more: another one may be submitted. `job` is kept for the next one.

    False if the run has started, has ended or has another job.
    """
    mine = col(Run.id) == run_id, col(Run.job_id) == job_id, col(Run.status) == Status.QUEUED
    return database.change(session, Run, *mine, job_id=None, job=job) is not None


def open_for(job_id: str) -> ColumnElement[bool]:
    """True for runs that this job may take: its own, and those whose job is not recorded yet."""
    return or_(col(Run.job_id) == job_id, col(Run.job_id).is_(None), col(Run.job_id).startswith(_MARK))


def end(*, session: Session, run: Run, status: Status, reason: str, error: dict[str, Any] | None = None) -> bool:
    """Ends a queued run as stopped or failed because of its job; False if it is no longer queued or no longer has this job."""
    queued = col(Run.status) == Status.QUEUED, col(Run.job_id) == run.job_id
    values: dict[str, Any] = {"status": status, "finished_at": database.clock()} | ({"error": error} if error else {})
    changed = database.change(session, Run, *RUN.named(RUN.key_of(run)), *queued, **values)
    if changed is not None:
        level = "error" if status is Status.FAILED else "warning"
        message = f"{status.value.capitalize()}. {reason}"
        history.note(session=session, run=run, message=message, level=level, kind=status.value)
        outbox.enqueue(session=session, run=changed, event=Event(status.value))
    return changed is not None

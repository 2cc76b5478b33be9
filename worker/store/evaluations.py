"""Evaluations: create, find, claim with a device, hold by a lease, finish. As for runs, each change of holder is one UPDATE.

Every function takes a session, which the caller commits: `with database.write() as session: ...`.
"""

from typing import Any

from sqlalchemy import ColumnElement, or_, update
from sqlmodel import Session, col, delete, select

from training.errors import UserError
from training.redaction import redact_all
from worker.store import database, quotas, runs, waiting
from worker.store.claims import LeaseLost
from worker.store.tables import DeviceLease, Evaluation, Run, Status

_FREE: dict[str, Any] = {
    "lease_owner": None, "lease_expires_at": None, "device": "", "stopping": False, "phase": "", "done": 0, "total": 0,
}  # fmt: skip


class EvaluationNotFound(UserError):  # noqa: N818
    """No evaluation has this id."""


class EvaluationEnded(UserError):  # noqa: N818
    """The evaluation has ended and cannot be stopped."""


class EvaluationActive(UserError):  # noqa: N818
    """The evaluation is queued or running and cannot be deleted."""


def create(*, session: Session, run_id: str, request: dict[str, Any], owner: str) -> Evaluation:
    """Queues an evaluation of a run."""
    now = database.now(session=session)
    item = Evaluation(id=runs.new_id(now), run_id=run_id, owner=owner, request=request, created_at=now)
    session.add(item)
    session.flush()
    return item


def get(*, session: Session, evaluation_id: str) -> Evaluation:
    """The evaluation with this id, or the only one that begins with it.

    Raises:
        EvaluationNotFound: there is none, or there are several.
    """
    wanted = evaluation_id.strip().lower()
    if len(wanted) >= runs.SHORTEST_PREFIX and wanted.isalnum():
        found = session.exec(select(Evaluation).where(col(Evaluation.id).startswith(wanted)).limit(2)).all()
        if len(found) == 1:
            return found[0]
    fix = "`lathe evaluations RUN` lists those of a run."
    raise EvaluationNotFound("evaluation", evaluation_id, "does not exist.", fix)


def of_run(*, session: Session, run_id: str) -> list[Evaluation]:
    """The evaluations of a run, newest first."""
    return list(session.exec(select(Evaluation).where(Evaluation.run_id == run_id).order_by(col(Evaluation.id).desc())))


def finished(*, session: Session, run_ids: list[str]) -> list[Evaluation]:
    """The finished evaluations of several runs, newest first."""
    mine = col(Evaluation.run_id).in_(run_ids), col(Evaluation.status) == Status.FINISHED
    return list(session.exec(select(Evaluation).where(*mine).order_by(col(Evaluation.id).desc())))


def startable(*, session: Session) -> list[Evaluation]:
    """The queued evaluations whose owners may use one more device, oldest first; none while the queue is paused."""
    if waiting.paused(session=session):
        return []
    queued = select(Evaluation).where(Evaluation.status == Status.QUEUED)
    allowed = quotas.DeviceQuotas.read(session)
    return [item for item in session.exec(queued.order_by(col(Evaluation.id))) if allowed.left(item.owner) > 0]


def claim(*, session: Session, evaluation_id: str, owner: str, device: str, lease_seconds: float) -> Evaluation | None:
    """Claims a queued evaluation and its device, both or neither; None if it is not queued, its owner may use no more devices, or
    the device is in use.
    """
    taken = {
        "status": Status.RUNNING, "attempt": Evaluation.attempt + 1, "lease_owner": owner, "device": device, "error": None,
        "lease_expires_at": database.clock() + lease_seconds, "started_at": database.clock(), "phase": "starting",
    }  # fmt: skip
    with session.begin_nested() as savepoint:
        item = _change(session, col(Evaluation.id) == evaluation_id, col(Evaluation.status) == Status.QUEUED, **taken)
        allowed = item is not None and quotas.keeps_devices(session=session, owner=item.owner)
        if item is None or not allowed or not _lease(session, item, device):
            savepoint.rollback()
            return None
    return item


def adopt(*, session: Session, evaluation_id: str, attempt: int, owner: str, lease_seconds: float) -> bool:
    """Hands the claim over to `owner`, the supervisor. False if the attempt is no longer the current one."""
    taken = {"lease_owner": owner, "lease_expires_at": database.clock() + lease_seconds}
    return _change(session, *_held(evaluation_id, attempt), **taken) is not None


def renew(
    *, session: Session, evaluation_id: str, attempt: int, owner: str, lease_seconds: float, **values: Any
) -> bool:
    """Extends the lease and stores progress (phase, done, total, overlap). Returns True if it is to stop.

    Raises:
        LeaseLost: `owner` no longer holds the evaluation.
    """
    expires = database.clock() + lease_seconds
    condition = *_held(evaluation_id, attempt), col(Evaluation.lease_owner) == owner
    item = _change(session, *condition, lease_expires_at=expires, **values)
    if item is None:
        raise LeaseLost(f"Evaluation {evaluation_id}, attempt {attempt}, is no longer held by {owner}.")
    return item.stopping


def finish(
    *,
    session: Session,
    evaluation_id: str,
    attempt: int,
    status: Status,
    summary: dict[str, Any] | None = None,
    error: dict[str, Any] | None = None,
) -> bool:
    """Ends an evaluation and frees its device. False if the attempt is not current."""
    values = _FREE | {"status": status, "finished_at": database.clock(), "summary": summary}
    values |= {"error": redact_all(error) if error else None}
    if _change(session, *_held(evaluation_id, attempt), **values) is None:
        return False
    _release(session, evaluation_id)
    return True


def requeue(*, session: Session, item: Evaluation, reason: str) -> bool:
    """Returns a lost evaluation to the queue, unless it has another holder by now. A stopping one is stopped."""
    held = *_held(item.id, item.attempt), col(Evaluation.lease_owner) == item.lease_owner
    stopped = {"status": Status.STOPPED, "finished_at": database.clock()}
    after = stopped if item.stopping else {"status": Status.QUEUED, "reason": reason}
    if _change(session, *held, **_FREE | after) is None:
        return False
    _release(session, item.id)
    return True


def running(*, session: Session) -> list[tuple[Evaluation, bool]]:
    """The running evaluations, each with whether its lease has expired."""
    expired = col(Evaluation.lease_expires_at) < database.clock()
    rows = session.exec(select(Evaluation, expired).where(Evaluation.status == Status.RUNNING)).all()
    return [(item, bool(late)) for item, late in rows]


def request_stop(*, session: Session, evaluation_id: str) -> Evaluation:
    """Stops a queued evaluation, and asks a running one to stop.

    Raises:
        EvaluationEnded: it has ended.
    """
    item = get(session=session, evaluation_id=evaluation_id)
    if item.status is Status.QUEUED:
        ended = {"status": Status.STOPPED, "finished_at": database.clock()}
        if _change(session, col(Evaluation.id) == item.id, col(Evaluation.status) == Status.QUEUED, **ended):
            return item
    if _change(session, col(Evaluation.id) == item.id, col(Evaluation.status) == Status.RUNNING, stopping=True):
        return item
    raise EvaluationEnded("evaluation", item.id, f"is {item.status.value}.", "Only a queued or running one is stopped.")


def remove(*, session: Session, evaluation_id: str) -> Evaluation:
    """Deletes an ended evaluation; the caller deletes its folder after the commit.

    Raises:
        EvaluationActive: it is queued or running.
    """
    item = get(session=session, evaluation_id=evaluation_id)
    ended = or_(*(col(Evaluation.status) == status for status in Status if status.ended))
    done = session.exec(delete(Evaluation).where(col(Evaluation.id) == item.id, ended))
    if not done.rowcount:
        raise EvaluationActive("evaluation", item.id, f"is {item.status.value}.", "Stop it first.")
    return item


def names(*, session: Session, run_ids: list[str]) -> dict[str, str]:
    """The names of runs by id."""
    return dict(session.exec(select(Run.id, Run.name).where(col(Run.id).in_(run_ids))).all())


def _held(evaluation_id: str, attempt: int) -> tuple[ColumnElement[bool], ...]:
    current = col(Evaluation.attempt) == attempt, col(Evaluation.status) == Status.RUNNING
    return (col(Evaluation.id) == evaluation_id, *current)


def _change(session: Session, *condition: ColumnElement[bool], **values: Any) -> Evaluation | None:
    session.flush()
    statement = update(Evaluation).where(*condition).values(**values).returning(Evaluation)
    options = {"synchronize_session": False, "populate_existing": True}
    return session.exec(statement, execution_options=options).scalars().one_or_none()


def _lease(session: Session, item: Evaluation, device: str) -> bool:
    row = {"device": device, "run_id": item.run_id, "attempt": item.attempt, "evaluation_id": item.id}
    statement = database.insert(session, DeviceLease).values([row]).on_conflict_do_nothing()
    return len(session.exec(statement.returning(col(DeviceLease.device))).all()) == 1


def _release(session: Session, evaluation_id: str) -> None:
    session.exec(delete(DeviceLease).where(col(DeviceLease.evaluation_id) == evaluation_id))

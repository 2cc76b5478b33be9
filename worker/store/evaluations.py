"""Evaluations: create, find, claim, finish, requeue. Their holders keep them by a lease (worker/store/work.py).

Every function takes a session, which the caller commits: `with database.write() as session: ...`.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

from sqlalchemy import or_
from sqlmodel import Session, col, delete, select

from training.errors import Conflict, NotFound
from training.scoring.request import BASE
from worker.store import database, json_parts, quotas, runs, waiting
from worker.store.tables import Evaluation, Run, Status
from worker.store.tables.row import whole
from worker.store.work import EVALUATION


class EvaluationNotFound(NotFound):
    """No evaluation has this id."""


class EvaluationEnded(Conflict):
    """The evaluation has ended and cannot be stopped."""


class EvaluationActive(Conflict):
    """The evaluation is queued or running and cannot be deleted."""


def create(*, session: Session, run_id: str, request: dict[str, Any], owner: str) -> Evaluation:
    """Queues an evaluation of a run. Raises ConfigError if its owner may have no more waiting work."""
    now = database.now(session=session)
    item = Evaluation(id=runs.new_id(now), run_id=run_id, owner=owner, request=request, created_at=now)
    session.add(item)
    quotas.refuse_too_many(session=session, owner=owner)
    return item


def get(*, session: Session, evaluation_id: str) -> Evaluation:
    """The evaluation with this id, or the only one that begins with it.

    Raises:
        EvaluationNotFound: there is none, or there are several.
    """
    matches = runs.with_id(session, Evaluation, evaluation_id.strip())
    if len(matches) == 1:
        return matches[0]
    fix = "`lathe evaluations RUN` lists those of a run."
    raise EvaluationNotFound("evaluation", evaluation_id, "does not exist.", fix)


def of_run(*, session: Session, run_id: str) -> list[Evaluation]:
    """The evaluations of a run, newest first."""
    return of_runs(session=session, run_ids=[run_id])


def of_runs(*, session: Session, run_ids: Collection[str]) -> list[Evaluation]:
    """The evaluations of several runs, newest first."""
    mine = col(Evaluation.run_id).in_(list(run_ids))
    return list(session.exec(select(Evaluation).where(mine).order_by(col(Evaluation.id).desc())))


def finished(*, session: Session, run_ids: list[str]) -> list[Evaluation]:
    """The finished evaluations of several runs, newest first."""
    mine = col(Evaluation.run_id).in_(run_ids), col(Evaluation.status) == Status.FINISHED
    return list(session.exec(select(Evaluation).where(*mine).order_by(col(Evaluation.id).desc())))


def of_suite(*, session: Session, suite_id: str) -> list[Evaluation]:
    """The evaluations of a suite, oldest first; empty if there is none."""
    mine = json_parts.text(Evaluation.request, "suite") == suite_id
    return list(session.exec(select(Evaluation).where(mine).order_by(col(Evaluation.id)))) if suite_id else []


def models_by_data(*, session: Session, digests: Collection[str]) -> dict[str, int]:
    """How many trained models (results and checkpoints of runs) have finished evaluations on each data set, by its SHA-256."""
    digest, source = json_parts.text(Evaluation.request, "sha256"), json_parts.text(Evaluation.request, "source")
    trained = col(Evaluation.status) == Status.FINISHED, digest.in_(list(digests)), source != BASE
    models = select(digest, col(Evaluation.run_id), source).where(*trained).distinct()
    return dict(Counter(row[0] for row in session.exec(models)))


def running(*, session: Session) -> list[tuple[str, str]]:
    """The id and the name of each run of which an evaluation is running, the oldest evaluation first."""
    active = select(Run.id, Run.name).join(Evaluation, col(Evaluation.run_id) == Run.id)
    return list(session.exec(active.where(Evaluation.status == Status.RUNNING).order_by(col(Evaluation.id))))


def startable(*, session: Session) -> list[Evaluation]:
    """The queued evaluations whose owners may use one more device, oldest first; none while the queue is paused."""
    if waiting.paused(session=session):
        return []
    queued = select(Evaluation).where(Evaluation.status == Status.QUEUED)
    allowed = quotas.DeviceQuotas.read(session)
    items = whole(session.exec(queued.order_by(col(Evaluation.id))))
    return [item for item in items if allowed.left(item.owner) > 0]


def claim(*, session: Session, evaluation_id: str, owner: str, device: str, lease_seconds: float) -> Evaluation | None:
    """Claims a queued evaluation and its device, both or neither; None if it is not queued, its owner may use no more devices, or
    the device is in use.
    """
    row = col(Evaluation.id) == evaluation_id
    return EVALUATION.take(session, row, holder=owner, lease_seconds=lease_seconds, leased=[device], device=device)


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
    return EVALUATION.finish(session, (evaluation_id, attempt), status, summary=summary, error=error)


def request_stop(*, session: Session, evaluation_id: str) -> Evaluation:
    """Stops a queued evaluation, and asks a running one to stop. Raises EvaluationEnded if it has ended."""
    item = get(session=session, evaluation_id=evaluation_id)
    if EVALUATION.request_stop(session, item):
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

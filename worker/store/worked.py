"""How long runs have worked: the sum of their attempts, without the time in which they waited or were stopped."""

from collections.abc import Collection
from typing import Any, cast

from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select

from worker.store import database
from worker.store.tables import Attempt, Run

_TAKEN = func.sum(func.coalesce(col(Attempt.ended_at), database.clock()) - col(Attempt.started_at))


def seconds() -> ColumnElement[Any]:
    """Of each run of a query, the seconds of its attempts, up to now of one that runs; null before the first."""
    return cast("ColumnElement[Any]", select(_TAKEN).where(Attempt.run_id == Run.id).scalar_subquery())


def seconds_of(*, session: Session, run_ids: Collection[str]) -> dict[str, float]:
    """The same of these runs by id; those that never started are missing."""
    taken = select(Attempt.run_id, _TAKEN).where(col(Attempt.run_id).in_(run_ids)).group_by(Attempt.run_id)
    return {run_id: max(float(seconds), 0.0) for run_id, seconds in session.exec(cast(Any, taken)).all()}

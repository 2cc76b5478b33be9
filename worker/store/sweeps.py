"""Sweeps in the database: create, find, list, and their runs.

Every function takes a session, which the caller commits, as in worker/store/runs.py.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlmodel import Session, col, func, select

from training.errors import Conflict, NotFound
from worker.store import database
from worker.store.metrics import WHOLE_RUN
from worker.store.runs import new_id, with_id
from worker.store.tables import Metric, Run, Status, Sweep


class SweepNotFound(NotFound):
    """No sweep has this id, or several begin with it."""


class SweepEnded(Conflict):
    """All runs of the sweep have ended, so it cannot be stopped."""


class SweepActive(Conflict):
    """A run of the sweep is queued or running, so it cannot be deleted."""


def create(*, session: Session, name: str, owner: str, spec: dict[str, Any], plan: dict[str, Any]) -> Sweep:
    """Stores a new sweep; its runs are created with its id."""
    now = database.now(session=session)
    sweep = Sweep(id=new_id(now), name=name, owner=owner, created_at=now, spec=spec, plan=plan)
    session.add(sweep)
    session.flush()
    return sweep


def get(*, session: Session, sweep_id: str) -> Sweep:
    """The sweep with this id, or the only one whose id begins with it (4 characters or more).

    Raises:
        SweepNotFound: there is none, or several.
    """
    matches = with_id(session, Sweep, sweep_id, col(Sweep.deleted_at).is_(None))
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SweepNotFound("sweep", sweep_id, "is the beginning of several ids.", "Give more of the id.")
    raise SweepNotFound("sweep", sweep_id, "does not exist.", "`lathe sweep list` and the page Sweeps list all sweeps.")


def locked(*, session: Session, sweep_id: str) -> Sweep:
    """The sweep, locked against other decisions until the session ends.

    Raises:
        SweepNotFound: there is no such sweep.
    """
    found = get(session=session, sweep_id=sweep_id)
    session.refresh(found, with_for_update=True)
    return found


def listing(*, session: Session, limit: int = 200, offset: int = 0) -> list[Sweep]:
    """The sweeps, newest first, without the first `offset`."""
    kept = select(Sweep).where(col(Sweep.deleted_at).is_(None))
    newest = kept.order_by(col(Sweep.created_at).desc(), col(Sweep.id).desc())
    return list(session.exec(newest.limit(limit).offset(offset)))


def deleted(*, session: Session) -> list[str]:
    """The sweeps that are being deleted."""
    return list(session.exec(select(Sweep.id).where(col(Sweep.deleted_at).is_not(None))))


def titles(*, session: Session, sweep_ids: Collection[str]) -> dict[str, str]:
    """The name of each sweep with its id, which tells sweeps of the same name apart."""
    named = select(Sweep.id, Sweep.name).where(col(Sweep.id).in_(sweep_ids))
    return {sweep_id: f"{name} · {sweep_id}" for sweep_id, name in session.exec(named)}


def runs_of(*, session: Session, sweep_ids: Collection[str]) -> list[Run]:
    """The runs of these sweeps, in the order of their trials."""
    chosen = select(Run).where(col(Run.sweep_id).in_(sweep_ids))
    return list(session.exec(chosen.order_by(col(Run.sweep_id), col(Run.trial), col(Run.id))))


def with_paused_runs(*, session: Session) -> list[str]:
    """The sweeps with a run that waits at a rung."""
    waits = col(Run.status) == Status.QUEUED, col(Run.held).is_(True), col(Run.step) >= col(Run.pause_at)
    return [found for found in session.exec(select(Run.sweep_id).where(*waits).distinct()) if found]


def at_steps(
    *, session: Session, run_ids: Sequence[str], metric: str, steps: Collection[int]
) -> dict[tuple[str, int], float | None]:
    """A metric of runs at these steps, by run and step; None for NaN and infinity."""
    wanted = select(Metric.run_id, Metric.step, Metric.value).where(
        col(Metric.run_id).in_(run_ids), Metric.name == metric, Metric.rank == WHOLE_RUN, col(Metric.step).in_(steps)
    )
    return {(run_id, step): value for run_id, step, value in session.exec(wanted)}


def last_values(*, session: Session, run_ids: Sequence[str], metric: str) -> dict[str, tuple[int, float | None]]:
    """The last step of each run at which a metric was reported, and its value there."""
    mine = col(Metric.run_id).in_(run_ids), Metric.name == metric, Metric.rank == WHOLE_RUN
    last = (
        select(Metric.run_id, func.max(Metric.step).label("step")).where(*mine).group_by(col(Metric.run_id)).subquery()
    )
    wanted = select(Metric.run_id, Metric.step, Metric.value).join(
        last, (col(Metric.run_id) == last.c.run_id) & (col(Metric.step) == last.c.step)
    )
    return {run_id: (step, value) for run_id, step, value in session.exec(wanted.where(*mine))}

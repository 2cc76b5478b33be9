"""Forms of a run's result that are made on request: at most one of each form.

Every function takes a session, which the caller commits: `with database.write() as session: ...`.
"""

from sqlmodel import Session, col, select

from training.errors import Conflict, NotFound
from worker.store import database, quotas, runs, waiting
from worker.store.tables import Build, Status
from worker.store.tables.row import whole
from worker.store.work import BUILD


class BuildNotFound(NotFound):
    """Nobody has asked for this form."""


class BuildEnded(Conflict):
    """The build has ended and cannot be stopped."""


def create(*, session: Session, run_id: str, form: str, owner: str) -> Build:
    """Queues a build; an earlier one of this form is forgotten if it has ended, and else returned. Locks the run.

    Raises:
        ConfigError: its owner may have no more waiting work.
    """
    runs.locked(session=session, run_id=run_id)
    if (item := _find(session, run_id, form)) and not item.status.ended:
        return item
    if item:
        session.delete(item)
        session.flush()
    now = database.now(session=session)
    item = Build(id=runs.new_id(now), run_id=run_id, form=form, owner=owner, created_at=now)
    session.add(item)
    quotas.refuse_too_many(session=session, owner=owner)
    return item


def get(*, session: Session, run_id: str, form: str) -> Build:
    """The build of a form. Raises BuildNotFound if there is none."""
    if item := _find(session, run_id, form):
        return item
    raise BuildNotFound("form", form, "is not being built.", f"Start it: lathe export {run_id}, or the run's page.")


def _find(session: Session, run_id: str, form: str) -> Build | None:
    return session.exec(select(Build).where(Build.run_id == run_id, Build.form == form)).one_or_none()


def of_run(*, session: Session, run_id: str) -> list[Build]:
    """The builds of a run, newest first."""
    return list(session.exec(select(Build).where(Build.run_id == run_id).order_by(col(Build.id).desc())))


def startable(*, session: Session) -> list[Build]:
    """The queued builds, oldest first; none while the queue is paused."""
    if waiting.paused(session=session):
        return []
    return list(whole(session.exec(select(Build).where(Build.status == Status.QUEUED).order_by(col(Build.id)))))


def request_stop(*, session: Session, run_id: str, form: str) -> Build:
    """Stops a queued build, and asks a running one to stop.

    Raises:
        BuildNotFound: there is none.
        BuildEnded: it has ended.
    """
    item = get(session=session, run_id=run_id, form=form)
    if not BUILD.request_stop(session, item):
        raise BuildEnded("form", form, f"is {item.status.value}.", "Only a queued or running build is stopped.")
    return item

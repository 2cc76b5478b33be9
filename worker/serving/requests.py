"""Requests for served models by users, and what is served now."""

from collections.abc import Sequence

from sqlmodel import Session

from worker import celery_app
from worker.runs.requests import admitted
from worker.serving import models
from worker.settings import get_settings
from worker.store import database, run_list, served_models
from worker.store.tables import Run, ServedModel, ServedState, Status

LOST_SECONDS = 30.0
"""A process whose worker has not renewed its lease for this long is not asked any more."""

_MOST_RUNS = 200


def ask(names: Sequence[str], owner: str) -> ServedModel:
    """Asks a worker to serve these models. Those that are served already stay, and those on the base model of the owner's
    process join it; others wait until it is their turn.

    Raises:
        NotServed: as `models.plan`.
        ConfigError: a run names what its owner may not name, or `owner` may have no more waiting work.
    """
    models.fetch(names)
    with database.read() as session:  # of runs that the user sees
        models.plan(session=session, names=names)
    with database.write() as session:
        _admit(session, names)
        known = present(session, owner)
        for served in known:
            if set(names) <= {*served.models, *served.loads}:
                return served
        if joined := _joined(session, known, names):
            return joined
        plan = models.plan(session=session, names=names)
        wanted = list(dict.fromkeys([plan.name, *plan.adapters, *plan.models]))
        served = served_models.create(session=session, models=wanted, owner=owner)
    celery_app.notify_of_model(served.id)
    return served


def ask_for_one(name: str, owner: str) -> ServedModel:
    """The served model that answers for `name`, or will; asks a worker for it if there is none.

    Raises:
        NotServed: as `models.source`, also if the user sees the run of a served model no more.
        ConfigError: as `ask`.
    """
    with database.read() as session:
        models.run_of(session=session, name=name)
        serving = [one for one in present(session) if name in one.models]
        if serving:
            return min(serving, key=lambda one: (one.state is not ServedState.READY, one.owner != owner))
    return ask([name], owner)


def _joined(session: Session, known: Sequence[ServedModel], names: Sequence[str]) -> ServedModel | None:
    """The first of these processes that can take the models which it does not have; None if there is none."""
    for served in known:
        missing = [name for name in names if name not in (*served.models, *served.loads)]
        others = {name for other in known if other is not served for name in (*other.models, *other.loads)}
        if others & set(missing):  # they could not join it before
            continue
        if all(models.can_join(session, served, name) for name in missing):
            return served_models.join(session=session, served_id=served.id, names=missing)
    return None


def _admit(session: Session, names: Sequence[str]) -> None:
    for name in names:
        admitted(models.run_of(session=session, name=name))


def offered() -> list[tuple[Run, list[str]]]:
    """The runs that were queued last, and pinned ones, with the names of their models, the newest first."""
    with database.read() as session:
        newest = run_list.listing(session=session, query=run_list.Query(limit=_MOST_RUNS))
    found = sorted(newest, key=lambda run: run.created_at, reverse=True)
    return [(run, names) for run in found if run.status is not Status.QUEUED and (names := models.offered(run))]


def present(session: Session, owner: str | None = None) -> list[ServedModel]:
    """The served models that answer or will, of an owner or of all."""
    live = served_models.live(session=session, owner=owner)
    return [one for one in live if not one.end_request and not is_lost(session, one)]


def is_lost(session: Session, served: ServedModel) -> bool:
    """True if its worker has not renewed its lease lately: no worker runs, or the machine is gone."""
    if served.state not in (ServedState.STARTING, ServedState.READY) or served.expires_at is None:
        return False
    renewed = served.expires_at - get_settings().lease_seconds
    return database.now(session=session) - renewed > LOST_SECONDS

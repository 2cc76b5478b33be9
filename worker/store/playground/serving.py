"""Served models in the database: who waits, who is held by which worker, and the devices that they lease."""

import secrets
from typing import Any

from sqlalchemy import ColumnElement, update
from sqlmodel import Session, col, delete, select

from training.errors import UserError
from training.redaction import redact
from worker.store import database, quotas
from worker.store.tables import DeviceLease, ServedModel, ServedState

_LIVE = (ServedState.WAITING, ServedState.STARTING, ServedState.READY)
REPLACED = "Its user asked for other models."


class ServedNotFound(UserError):  # noqa: N818
    """No served model has this id."""


def create(*, session: Session, models: list[str], owner: str) -> ServedModel:
    """Asks for a process that serves these models. It replaces the owner's earlier one."""
    for earlier in live(session=session, owner=owner):
        request_end(session=session, served_id=earlier.id, reason=REPLACED)
    served = ServedModel(
        id=secrets.token_hex(6),
        owner=owner,
        models=models,
        created_at=database.now(session=session),
        secret=secrets.token_hex(32),
    )
    session.add(served)
    session.flush()
    return served


def get(*, session: Session, served_id: str) -> ServedModel:
    """One served model.

    Raises:
        ServedNotFound: there is none.
    """
    served = session.get(ServedModel, served_id)
    if served is None:
        raise ServedNotFound("served model", served_id, "does not exist.", "The page Playground starts one.")
    return served


def live(*, session: Session, owner: str | None = None, holder: str | None = None) -> list[ServedModel]:
    """Those that have not ended, the newest first; only those of an owner or of a worker."""
    statement = select(ServedModel).where(col(ServedModel.state).in_(_LIVE))
    if owner is not None:
        statement = statement.where(ServedModel.owner == owner)
    if holder is not None:
        statement = statement.where(ServedModel.holder == holder)
    return list(session.exec(statement.order_by(col(ServedModel.created_at).desc(), col(ServedModel.id))))


def latest(*, session: Session, owner: str) -> ServedModel | None:
    """The owner's latest, ended or not."""
    statement = select(ServedModel).where(ServedModel.owner == owner)
    return session.exec(statement.order_by(col(ServedModel.created_at).desc(), col(ServedModel.id)).limit(1)).first()


def waiting(*, session: Session) -> list[ServedModel]:
    """Those that no worker has started, the oldest first."""
    statement = select(ServedModel).where(ServedModel.state == ServedState.WAITING)
    return list(session.exec(statement.order_by(col(ServedModel.created_at), col(ServedModel.id))))


def on_devices(*, session: Session) -> dict[str, ServedModel]:
    """The served models by the device that they lease."""
    joined = select(DeviceLease.device, ServedModel).join(ServedModel, col(ServedModel.id) == DeviceLease.served_id)
    return dict(session.exec(joined).all())


def claim(*, session: Session, served_id: str, holder: str, device: str | None) -> bool:
    """Takes a waiting one with its device, both or neither. False if it does not wait, its owner may use no more devices, or the
    device is in use.
    """
    taken = {
        "state": ServedState.STARTING,
        "holder": holder,
        "device": device,
        "reason": "",
        "seen_at": database.clock(),
    }
    with session.begin_nested() as savepoint:
        claimed = _change(session, served_id, col(ServedModel.state) == ServedState.WAITING, **taken)
        if not claimed or (device is not None and not _take(session, served_id, device)):
            savepoint.rollback()
            return False
    return True


def note(*, session: Session, served_id: str, reason: str) -> None:
    """Says why it waits."""
    _change(session, served_id, col(ServedModel.state) == ServedState.WAITING, reason=reason)


def started(*, session: Session, served_id: str, pid: int) -> None:
    """Stores its process."""
    _change(session, served_id, col(ServedModel.state) == ServedState.STARTING, pid=pid)


def ready(*, session: Session, served_id: str, address: str) -> None:
    """It answers at `address`, host:port."""
    values = {"state": ServedState.READY, "address": address, "ready_at": database.clock(), "seen_at": database.clock()}
    _change(session, served_id, col(ServedModel.state) == ServedState.STARTING, **values)


def beat(*, session: Session, served_id: str) -> str:
    """Stores that its process lives. Returns why it should end, or ""."""
    _change(session, served_id, col(ServedModel.state).in_(_LIVE), seen_at=database.clock())
    return get(session=session, served_id=served_id).end_request


def request_end(*, session: Session, served_id: str, reason: str) -> None:
    """Asks its worker to end it; one that no worker has started ends at once."""
    _change(session, served_id, col(ServedModel.state).in_(_LIVE), end_request=reason)
    if get(session=session, served_id=served_id).state is ServedState.WAITING:
        finish(session=session, served_id=served_id, reason=reason)


def finish(*, session: Session, served_id: str, reason: str) -> bool:
    """Ends it and frees its device. False if it has ended already."""
    values = {"state": ServedState.ENDED, "reason": redact(reason), "ended_at": database.clock(), "address": ""}
    ended = _change(session, served_id, col(ServedModel.state).in_(_LIVE), **values)
    if ended:
        session.exec(delete(DeviceLease).where(col(DeviceLease.served_id) == served_id))
    return ended


def silent(*, session: Session, seconds: float) -> list[ServedModel]:
    """Those that a worker holds, and has not seen for `seconds`."""
    late = col(ServedModel.seen_at) < database.clock() - seconds
    return [served for served in session.exec(select(ServedModel).where(late)) if served.state in _LIVE]


def _change(session: Session, served_id: str, condition: ColumnElement[bool], **values: Any) -> bool:
    session.flush()
    statement = update(ServedModel).where(col(ServedModel.id) == served_id, condition).values(**values)
    changed = session.exec(statement.returning(col(ServedModel.id)), execution_options={"synchronize_session": False})
    found = changed.first() is not None
    session.expire_all()
    return found


def _take(session: Session, served_id: str, device: str) -> bool:
    owner = get(session=session, served_id=served_id).owner
    return quotas.keeps_devices(session=session, owner=owner) and _lease(session, served_id, device)


def _lease(session: Session, served_id: str, device: str) -> bool:
    row = {"device": device, "served_id": served_id, "attempt": 0}
    statement = database.insert(session, DeviceLease).values(row).on_conflict_do_nothing()
    return session.exec(statement.returning(col(DeviceLease.device))).first() is not None

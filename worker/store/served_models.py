"""Served models in the database: who waits, who is held by which worker, and the devices that they lease."""

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement
from sqlmodel import Session, col, select

from training.errors import NotFound
from training.redaction import redact
from worker.store import database, quotas
from worker.store.tables import DeviceLease, ServedModel, ServedState
from worker.store.tables.row import whole
from worker.store.work import SERVED

TURN = "Other models waited for their turn."
ENDED_BY_USER = "Its user ended it."


class ServedNotFound(NotFound):
    """No served model has this id."""


def create(*, session: Session, models: list[str], owner: str) -> ServedModel:
    """Asks for a process that serves these models. It waits for its turn: a worker ends the owner's earlier one for it.

    Raises:
        ConfigError: the owner may have no more waiting work.
    """
    served = _added(session, models, owner)
    quotas.refuse_too_many(session=session, owner=owner)
    return served


def _added(session: Session, models: list[str], owner: str) -> ServedModel:
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


def join(*, session: Session, served_id: str, names: Sequence[str]) -> ServedModel | None:
    """Asks for models beside those of a process, which loads them while it answers. None if it ends by now."""
    served = _locked(session, served_id)
    if served is None or served.end_request or served.state is ServedState.ENDED:
        return None
    known = {*served.models, *served.loads}
    served.loads = [*served.loads, *(name for name in dict.fromkeys(names) if name not in known)]
    session.add(served)
    session.flush()
    return served


def loaded(*, session: Session, served_id: str, name: str, is_served: bool) -> None:
    """Notes that a process serves a model which it was asked for; or cannot, and the model waits for a process of its own."""
    served = _locked(session, served_id)
    if served is None or name not in served.loads:
        return
    served.loads = [one for one in served.loads if one != name]
    if is_served:
        served.models = [*served.models, name]
    else:
        _added(session, [name], served.owner)
    session.add(served)
    session.flush()


def _locked(session: Session, served_id: str) -> ServedModel | None:
    statement = select(ServedModel).where(ServedModel.id == served_id).with_for_update()
    return session.exec(statement.execution_options(populate_existing=True)).one_or_none()


def position(*, session: Session, served: ServedModel) -> int | None:
    """Its place among those that wait, from 1; None if it does not wait."""
    ids = [one.id for one in waiting(session=session)]
    return ids.index(served.id) + 1 if served.id in ids else None


def get(*, session: Session, served_id: str) -> ServedModel:
    """One served model. Raises ServedNotFound if there is none."""
    missing = ServedNotFound("served model", served_id, "does not exist.", "The page Playground starts one.")
    return database.existing(session, ServedModel, served_id, missing)


def live(*, session: Session, owner: str | None = None) -> list[ServedModel]:
    """Those that have not ended, the newest first; only those of an owner."""
    statement = select(ServedModel).where(SERVED.held)
    if owner is not None:
        statement = statement.where(ServedModel.owner == owner)
    return list(session.exec(statement.order_by(col(ServedModel.created_at).desc(), col(ServedModel.id))))


def latest(*, session: Session, owner: str) -> ServedModel | None:
    """The owner's latest that a worker holds; without one the latest of all, waiting or ended."""
    if held := [one for one in live(session=session, owner=owner) if one.state is not ServedState.WAITING]:
        return held[0]
    statement = select(ServedModel).where(ServedModel.owner == owner)
    return session.exec(statement.order_by(col(ServedModel.created_at).desc(), col(ServedModel.id)).limit(1)).first()


def waiting(*, session: Session) -> list[ServedModel]:
    """Those that no worker has started, the oldest first."""
    statement = select(ServedModel).where(ServedModel.state == ServedState.WAITING)
    return list(whole(session.exec(statement.order_by(col(ServedModel.created_at), col(ServedModel.id)))))


def on_devices(*, session: Session) -> dict[str, ServedModel]:
    """The served models by the device that they lease."""
    joined = select(DeviceLease.device, ServedModel).join(ServedModel, col(ServedModel.id) == DeviceLease.served_id)
    return dict(session.exec(joined).all())


def claim(*, session: Session, served_id: str, holder: str, device: str | None, lease_seconds: float) -> bool:
    """Takes a waiting one with its device, both or neither. False if it does not wait, its owner may use no more devices, or the
    device is in use.
    """
    waits = _is(served_id, ServedState.WAITING)
    held = {"holder": holder, "lease_seconds": lease_seconds, "leased": [device] if device else []}
    taken: dict[str, Any] = held | {"state": ServedState.STARTING, "device": device, "reason": ""}
    return SERVED.claim(session, *waits, **taken) is not None


def note(*, session: Session, served_id: str, reason: str) -> None:
    """Says why it waits."""
    SERVED.change(session, *_is(served_id, ServedState.WAITING), reason=reason)


def ready(address: str, note: str = "") -> dict[str, Any]:
    """The values of a row whose process answers at `address`, host:port; `note` says why vLLM does not answer if it should."""
    return {"state": ServedState.READY, "address": address, "ready_at": database.clock(), "reason": redact(note)}


def request_end(*, session: Session, served_id: str, reason: str) -> None:
    """Asks its worker to end it; one that no worker has started ends at once."""
    SERVED.change(session, *SERVED.current((served_id,)), end_request=reason)
    if get(session=session, served_id=served_id).state is ServedState.WAITING:
        finish(session=session, served_id=served_id, reason=reason)


def request_devices(*, session: Session, devices: Collection[str], reason: str) -> None:
    """Asks the models on these devices to end, except those that were asked before."""
    for device, served in on_devices(session=session).items():
        if device in devices and not served.end_request:
            request_end(session=session, served_id=served.id, reason=reason)


def finish(*, session: Session, served_id: str, reason: str) -> bool:
    """Ends it and frees its device. False if it has ended already."""
    values = {"state": ServedState.ENDED, "reason": redact(reason), "ended_at": database.clock(), "address": ""}
    return SERVED.end(session, (served_id,), **values) is not None


def _is(served_id: str, state: ServedState) -> tuple[ColumnElement[bool], ...]:
    return (*SERVED.named((served_id,)), col(ServedModel.state) == state)

"""Whose turn it is: models that wait take the place of those that were served for long enough, whose answers end first."""

import time
from collections.abc import Callable, Sequence

from sqlmodel import Session, col, select

from worker.machine import devices, free_devices, overload
from worker.serving import calls
from worker.settings import get_settings
from worker.store import database, quotas, served_models, sight
from worker.store.tables import LOCAL, DeviceLease, Run, ServedModel, ServedState

_IDLE_SECONDS = 7.0  # longer than the pause of clients that were told to try again (app/web/rest/openai.py)
_DEVICE_SECONDS = 60.0  # for which a run or an evaluation waits for answers in progress
_POLL_SECONDS = 0.2


def obstacle(served: ServedModel) -> str:
    """Why it cannot start now, or ""."""
    if reason := overload.here():
        return f"This machine starts nothing at present ({reason}); it starts when the machine has recovered."
    with database.read() as session:
        live = served_models.live(session=session)
        blocking = [one for one in live if one.owner == served.owner and one.state is not ServedState.WAITING]
        if not blocking and devices.usable_gpus():
            if (allowed := quotas.DeviceQuotas.read(session)).left(served.owner) < 1:
                return f"{allowed.sentence(served.owner)}; it starts when one is free."
            if not free_devices.free(session=session):
                own = set(devices.own_devices())
                blocking = [one for one in served_models.on_devices(session=session).values() if one.device in own]
                if not blocking:
                    return f"All devices are in use by {_users(session, served.owner)}; it starts when one is free."
    return _take_place_of(blocking, served.owner) if blocking else ""


def _users(session: Session, owner: str) -> str:
    """What holds this machine's devices, as the owner of a model that waits may be told."""
    own = set(devices.own_devices())
    held = [lease for lease in session.exec(select(DeviceLease)) if lease.device in own]
    is_limited = get_settings().visibility == "own" and owner != LOCAL
    with sight.seen_by(owner if is_limited else None), database.read() as seen:
        runs = set(seen.exec(select(Run.id).where(col(Run.id).in_([lease.run_id for lease in held]))))
        served = set(seen.exec(select(ServedModel.id).where(col(ServedModel.id).in_([one.served_id for one in held]))))
    names = [
        (f"run {lease.run_id}" if lease.run_id in runs else sight.ANOTHER_RUN)
        if lease.run_id
        else (f"served model {lease.served_id}" if lease.served_id in served else f"a served model of {sight.ANOTHER}")
        for lease in held
    ]
    return ", ".join(dict.fromkeys(names))


def _take_place_of(blocking: Sequence[ServedModel], owner: str) -> str:
    """Asks one of these processes to end for one that waits, if its turn is over. Returns why that waits, as a sentence."""
    if any(one.end_request for one in blocking):
        return "The models served before answer their last requests."
    ready = [one for one in blocking if one.state is ServedState.READY]
    with database.read() as session:
        now = database.now(session=session)
    tenure = get_settings().serve_tenure
    for one in sorted(ready, key=lambda one: one.ready_at or 0.0):
        if now - (one.ready_at or now) >= tenure or _is_idle(one):
            with database.write() as session:
                served_models.request_end(session=session, served_id=one.id, reason=served_models.TURN)
            return "The models served before answer their last requests."
    names = ", ".join(dict.fromkeys(name for one in blocking if one.owner == owner for name in one.models))
    others = names or "models of other users"
    return f"It waits for its turn: {others} are served for at least {tenure:g} s while they are asked."


def drain(served: ServedModel, goes_on: Callable[[], bool]) -> None:
    """Waits until a process has answered its requests; what does not get its turn is sent to the process that serves it next.

    A user who ends it does not wait, and a run or an evaluation for a minute at most. `goes_on` is called often; it says whether
    the process still runs and may.
    """
    if served.end_request == served_models.ENDED_BY_USER or not calls.drain(served):
        return
    began, limit = time.monotonic(), None if served.end_request == served_models.TURN else _DEVICE_SECONDS
    while goes_on() and (limit is None or time.monotonic() - began < limit):
        found = calls.health(served)
        if found is None or not found.pending:
            return
        time.sleep(_POLL_SECONDS)


def _is_idle(served: ServedModel) -> bool:
    found = calls.health(served)
    return found is not None and not found.pending and bool(found.answered) and found.idle_seconds >= _IDLE_SECONDS

"""Starts queued evaluations on free devices of this machine, and finds lost ones. The worker calls it at each round."""

from worker.evaluations.submit import folder_of
from worker.machine import devices, free_devices, overload
from worker.machine.process_identity import me
from worker.settings import get_settings
from worker.store import database, evaluations, served_models
from worker.store.tables import Evaluation
from worker.store.work import EVALUATION
from worker.supervision.queued_work import WorkQueue

_queue = WorkQueue(EVALUATION, "worker.evaluations.supervisor", folder_of)
recover, supervisors = _queue.recover, _queue.supervisors


def start_waiting() -> list[Evaluation]:
    """Starts the oldest queued evaluations on free devices, one device each, and returns them."""
    started: list[Evaluation] = []
    if overload.here():
        return started
    with supervisors.lock:
        while item := _claimed():
            _queue.supervise(item)
            started.append(item)
        _end_served_for_next()
    return started


def _claimed() -> Evaluation | None:
    with database.write() as session:
        queued = evaluations.startable(session=session)
        free = free_devices.free(session=session) if queued else []
        if not free:
            return None
        seconds = get_settings().lease_seconds
        return evaluations.claim(
            session=session, evaluation_id=queued[0].id, owner=str(me()), device=free[0], lease_seconds=seconds
        )


def _end_served_for_next() -> None:
    """Asks a served model of this machine to end if an evaluation waits for its device."""
    with database.read() as session:
        queued = evaluations.startable(session=session)
        if not queued or free_devices.free(session=session):
            return
        own = set(devices.own_devices())
        held = {name: served for name, served in served_models.on_devices(session=session).items() if name in own}
    if held and not any(served.end_request for served in held.values()):
        reason = f"An evaluation of run {queued[0].run_id} needs its device."
        with database.write() as session:
            served_models.request_devices(session=session, devices=[min(held)], reason=reason)

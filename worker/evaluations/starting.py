"""Starts queued evaluations on free devices of this machine, and finds lost ones. The worker calls it at each round."""

import logging
import sys
from typing import Any

from sqlmodel import Session

from worker.evaluations.submit import folder_of
from worker.machine import devices, free_devices, overload
from worker.machine.process_identity import hostname, me
from worker.settings import get_settings
from worker.store import database, evaluations
from worker.store.playground import serving
from worker.store.tables import Evaluation, Status
from worker.store.work import EVALUATION
from worker.supervision import holders
from worker.supervision.holders import Holder, Supervisors
from worker.supervision.training_process import end_left_behind

log = logging.getLogger(__name__)

SUPERVISOR_LOG = "supervisor.log"
supervisors = Supervisors(EVALUATION)


def start_waiting() -> list[Evaluation]:
    """Starts the oldest queued evaluations on free devices, one device each, and returns them."""
    started: list[Evaluation] = []
    if overload.here():
        return started
    with supervisors.lock:
        while item := _claimed():
            _supervise(item)
            started.append(item)
        _end_served_for_next()
    return started


def recover() -> list[Evaluation]:
    """Requeues the evaluations whose supervisor is gone; after too many attempts they fail. Returns them."""
    how = supervisors.poll, _end_left_behind, _close
    return [item for item in holders.lost(EVALUATION, supervisors.poll) if holders.recover(EVALUATION, item, *how)]


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
        held = {name: served for name, served in serving.on_devices(session=session).items() if name in own}
    if held and not any(served.end_request for served in held.values()):
        reason = f"An evaluation of run {queued[0].run_id} needs its device."
        with database.write() as session:
            serving.request_devices(session=session, devices=[min(held)], reason=reason)


def _supervise(item: Evaluation) -> None:
    command = [sys.executable, "-m", "worker.evaluations.supervisor", item.id, str(item.attempt)]
    supervisors.start(item, command, folder_of(item) / SUPERVISOR_LOG)


def _end_left_behind(item: Evaluation) -> None:
    if item.device.partition("/")[0] == hostname():
        holders.end_holder(item)
        end_left_behind(f"evaluation-{item.id}")


def _close(session: Session, item: Evaluation, _: Holder) -> bool:
    reason = f"Its supervisor on {item.device.partition('/')[0]} ended unexpectedly."
    if item.attempt < get_settings().max_attempts:
        log.warning("evaluation %s, attempt %d, is lost; it is queued again", item.id, item.attempt)
        return evaluations.requeue(session=session, item=item, reason=reason)
    message, fix = f"{reason} It was tried {item.attempt} times.", f"Its folder has {SUPERVISOR_LOG}."
    error = {"field": "evaluation", "value": item.id, "message": message, "fix": fix}
    ended: dict[str, Any] = {"evaluation_id": item.id, "attempt": item.attempt, "error": error}
    return evaluations.finish(session=session, status=Status.FAILED, **ended)

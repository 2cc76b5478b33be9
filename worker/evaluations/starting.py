"""Starts queued evaluations on free devices of this machine, and finds lost ones. The worker calls it at each round."""

import logging
import subprocess
import sys
import threading

from worker.evaluations.submit import folder_of
from worker.machine import devices, free_devices, overload, processes
from worker.machine.process_identity import Identity, hostname, me
from worker.settings import ROOT, get_settings
from worker.store import database, evaluations
from worker.store.playground import serving
from worker.store.tables import Evaluation, Status
from worker.supervision.training_process import end_left_behind

log = logging.getLogger(__name__)

SUPERVISOR_LOG = "supervisor.log"
ended = threading.Event()
"""Set when a supervisor of this process has ended: its device is free."""

_lock = threading.Lock()
_supervisors: dict[tuple[str, int], "subprocess.Popen[bytes]"] = {}


def start_waiting() -> list[Evaluation]:
    """Starts the oldest queued evaluations on free devices, one device each, and returns them."""
    started: list[Evaluation] = []
    if overload.here():
        return started
    with _lock:
        while item := _claimed():
            _supervise(item)
            started.append(item)
        _end_served_for_next()
    return started


def recover() -> list[Evaluation]:
    """Requeues the evaluations whose supervisor is gone; after too many attempts they fail. Returns them."""
    with database.read() as session:
        lost = [item for item, expired in evaluations.running(session=session) if expired or _is_dead(item)]
    return [item for item in lost if _recovered(item)]


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
        held = {name: one for name, one in serving.on_devices(session=session).items() if name in own}
    if held and not any(one.end_request for one in held.values()):
        reason = f"An evaluation of run {queued[0].run_id} needs its device."
        with database.write() as session:
            serving.request_end(session=session, served_id=min(held.items())[1].id, reason=reason)


def _supervise(item: Evaluation) -> None:
    """Starts the supervisor; if that fails, the lease expires and the evaluation is requeued."""
    folder = folder_of(item)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "worker.evaluations.supervisor", item.id, str(item.attempt)]
        started = processes.start_detached(command, output=folder / SUPERVISOR_LOG, cwd=ROOT)
    except OSError:
        log.exception("the supervisor of evaluation %s cannot be started", item.id)
        return
    log.info("evaluation %s, attempt %d: supervisor %d on %s", item.id, item.attempt, started.pid, item.device)
    _supervisors[item.id, item.attempt] = started
    threading.Thread(target=_attend, args=(item, started), name=f"evaluation {item.id}", daemon=True).start()


def _attend(item: Evaluation, started: "subprocess.Popen[bytes]") -> None:
    code = started.wait()
    log.info("evaluation %s, attempt %d: supervisor ended with exit code %d", item.id, item.attempt, code)
    with _lock:
        del _supervisors[item.id, item.attempt]
    ended.set()


def _is_dead(item: Evaluation) -> bool:
    owner = Identity.parse(item.lease_owner)
    if owner is None:
        return False
    if item.lease_owner == str(me()):  # claimed here; its supervisor ended before it took it over
        with _lock:
            return (item.id, item.attempt) not in _supervisors
    return owner.provably_dead(only_machine=not get_settings().database_url)


def _recovered(item: Evaluation) -> bool:
    if item.device.partition("/")[0] == hostname():
        holder = Identity.parse(item.lease_owner)
        if holder and holder.here and holder.alive and item.lease_owner != str(me()):
            processes.kill_tree(holder.pid)  # its lease has expired: it hangs
        end_left_behind(f"evaluation-{item.id}")
    reason = f"Its supervisor on {item.device.partition('/')[0]} ended unexpectedly."
    most = get_settings().max_attempts
    with database.write() as session:
        if item.attempt < most:
            log.warning("evaluation %s, attempt %d, is lost; it is queued again", item.id, item.attempt)
            return evaluations.requeue(session=session, item=item, reason=reason)
        message, fix = f"{reason} It was tried {item.attempt} times.", f"Its folder has {SUPERVISOR_LOG}."
        error = {"field": "evaluation", "value": item.id, "message": message, "fix": fix}
        return evaluations.finish(
            session=session, evaluation_id=item.id, attempt=item.attempt, status=Status.FAILED, error=error
        )

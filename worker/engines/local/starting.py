"""Starts waiting runs on this machine's devices, each with its own supervisor."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from sqlmodel import Session

from training.config.choices import EngineName
from worker.engines.local import placement
from worker.evaluations import starting as evaluations
from worker.machine import devices, free_devices, overload, processes
from worker.machine.process_identity import me
from worker.serving import processes as serving
from worker.settings import ROOT, get_settings
from worker.store import claims, database, waiting
from worker.store.database import UNREACHABLE
from worker.store.engine_names import engine_name
from worker.store.playground import serving as served_models
from worker.store.tables import Run
from worker.supervision.lease import steady
from worker.supervision.standby import FLAG, SUPERVISOR_LOG, Standby

log = logging.getLogger(__name__)

# Set when a supervisor of this worker has ended: devices may be free, or its run lost.
supervisor_ended = evaluations.ended  # of a run or an evaluation
serving.after_each_end(supervisor_ended.set)

_START_LEASES = 12  # a supervisor that needs more lease periods to start counts as hanging
_lock = threading.Lock()
_standby = Standby()
_supervisors: dict[tuple[str, int], subprocess.Popen[bytes]] = {}


def supervisor_command(*arguments: str, module: str = "worker.supervision.supervisor") -> list[str]:
    """The command of a supervisor; `arguments` are run and attempt, or `--standby`."""
    return [sys.executable, "-m", module, *arguments]


def start_waiting() -> list[Run]:
    """Starts the waiting runs that fit on this machine's free devices, the oldest first, and returns them.

    Starts none while the machine is overloaded.
    """
    started: list[Run] = []
    if overload.here():
        return started
    with _lock:
        while candidate := _candidate():
            # None if another worker was faster: look at the queue again.
            if run := _claim(*candidate):
                _supervise(run)
                started.append(run)
        _end_served_for_next()
    return started


def _end_served_for_next() -> None:
    """Asks served models to end if the next waiting run could start on their devices, which may be those of several machines."""
    with database.read() as session:
        on_devices = served_models.on_devices(session=session)
        held = {device: served for device, served in on_devices.items() if not served.end_request}
        usable = [
            *free_devices.free(session=session),
            *(one for one in free_devices.offered(session=session) if one in held),
        ]
        found = _next(session, usable, yielding=held) if held and usable else None
    for device in found[1] if found else ():
        if device in held:
            with database.write() as session:
                reason = f"Run {found[0].id} needs its device." if found else ""
                served_models.request_end(session=session, served_id=held[device].id, reason=reason)


def prepare() -> None:
    """Keeps a supervisor process ready while a device is free, so that the next run starts at once."""
    if overload.here():
        return
    with database.read() as session:
        free = free_devices.free(session=session)
    if free:
        with _lock:
            _standby.prepare(supervisor_command(FLAG))


def abandoned(run: Run) -> bool:
    """True if this process claimed the run and no supervisor will take it over."""
    return run.lease_owner == str(me()) and not _has_supervisor(run)


def awaits_adoption(run: Run) -> bool:
    """True if this process claimed the run and its supervisor is still starting."""
    return run.lease_owner == str(me()) and _has_supervisor(run)


def _has_supervisor(run: Run) -> bool:
    with _lock:
        supervisor = _supervisors.get((run.id, run.attempt))
        return supervisor is not None and supervisor.poll() is None


def _candidate() -> tuple[Run, list[str]] | None:
    with database.read() as session:
        free = free_devices.free(session=session)
        return _next(session, free) if free else None


def _next(session: Session, usable: list[str], yielding: Collection[str] = ()) -> tuple[Run, list[str]] | None:
    """The run to start next and its devices. `usable` are of this machine; `yielding` of any machine count as free for a gang."""

    def gang(run: Run, here: list[str]) -> list[str] | None:
        return placement.place(session=session, run=run, here=here, yielding=yielding)

    now, patience = database.now(session=session), get_settings().overtaking_seconds
    return next_run(_startable(session), usable, free_devices.offered(session=session), now, patience, gang)


def _startable(session: Session) -> Iterator[Run]:
    # As claims count devices: a run that is offered and not claimed would be offered again and again.
    found = waiting.startable_one_by_one(session=session, on_cpu=not devices.usable_gpus())
    return (run for run in found if engine_name(run) is EngineName.LOCAL)


def _claim(run: Run, chosen: list[str]) -> Run | None:
    seconds = get_settings().lease_seconds
    count = len(placement.hosts(chosen))
    placed = placement.changes(placement.settings_of(run), count) if _machines(run) > 1 else None
    with database.write() as session:
        return claims.claim(
            session=session, run_id=run.id, owner=str(me()), devices=chosen, lease_seconds=seconds, placed=placed
        )


def _supervise(run: Run) -> None:
    """Starts the supervisor; if that fails, the run counts as abandoned."""
    folder = get_settings().runs_dir / run.id
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ready = _standby.take(run) if _machines(run) == 1 else None
        started = ready or _start_cold(run, folder / SUPERVISOR_LOG)
    except OSError:
        log.exception("the supervisor of run %s cannot be started", run.id)
        return
    log.info("run %s, attempt %d: supervisor %d on %s", run.id, run.attempt, started.pid, ", ".join(run.devices))
    _supervisors[run.id, run.attempt] = started
    threading.Thread(target=_attend, args=(run, started), name=f"supervisor of {run.id}", daemon=True).start()


def _start_cold(run: Run, log_file: Path) -> subprocess.Popen[bytes]:
    command = supervisor_command(run.id, str(run.attempt))
    if _machines(run) > 1:
        command = supervisor_command(run.id, str(run.attempt), module="worker.engines.local.gang")
    return processes.start_detached(command, output=log_file, cwd=ROOT)


def _machines(run: Run) -> int:
    return int((run.config | run.stepped_down).get("num_machines", 1))


def _attend(run: Run, started: subprocess.Popen[bytes]) -> None:
    """Holds the run until its supervisor adopts it, then waits for the supervisor's end."""
    _hold(run, started)
    code = started.wait()
    log.info("run %s, attempt %d: supervisor ended with exit code %d", run.id, run.attempt, code)
    with _lock:
        del _supervisors[run.id, run.attempt]
    supervisor_ended.set()


def _hold(run: Run, started: subprocess.Popen[bytes]) -> None:
    """Renews the lease while the supervisor starts: on a busy machine that may take longer than a lease period."""
    settings = get_settings()
    deadline = steady() + _START_LEASES * settings.lease_seconds
    while steady() < deadline:
        processes.wait_for_end(started, settings.renew_seconds)
        if started.poll() is not None or not _renewed(run):
            return
    log.error("run %s, attempt %d: supervisor %d does not start; killing it", run.id, run.attempt, started.pid)
    processes.kill_tree(started.pid)


def _renewed(run: Run) -> bool:
    """Renews the lease. False once the supervisor or another process holds the run."""
    try:
        with database.write() as session:
            seconds = get_settings().lease_seconds
            claims.renew(session=session, run_id=run.id, attempt=run.attempt, owner=str(me()), lease_seconds=seconds)
    except claims.LeaseLost:
        return False
    except UNREACHABLE as error:
        log.warning("the database is unreachable: %s", error)
    return True


def next_run(
    waiting: Iterable[Run],
    free: list[str],
    own: list[str],
    now: float,
    overtaking_seconds: float,
    gang: Callable[[Run, list[str]], list[str] | None] = lambda _run, _here: None,
) -> tuple[Run, list[str]] | None:
    """The run to start next and its devices, or None if no run can start.

    `waiting` are queued runs, the oldest first; `free` of this machine's devices `own` are not leased; `now` is in seconds by
    the database's clock. Later runs that need fewer devices may overtake a run that needs more than are free, until it has
    been queued for `overtaking_seconds`; then free devices are kept for it. A run that needs more devices than this machine has
    never blocks others here. `gang` returns the devices of all machines of a run on several, given those chosen here.
    """
    for run in waiting:
        machines = _machines(run)
        needed = int((run.config | run.stepped_down).get("num_processes", 1)) // machines
        chosen = devices.choose(needed, free)
        if chosen and machines > 1:
            chosen = gang(run, chosen)
        if chosen:
            return run, chosen
        if now - run.queued_at > overtaking_seconds and devices.choose(needed, own):
            return None
    return None

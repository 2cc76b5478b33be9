"""Starting waiting runs on this machine's devices, each under a supervisor of its own."""

import logging
import subprocess
import sys
import threading
from pathlib import Path

from sqlmodel import select

from worker import database, devices, overload, process, runs
from worker.identity import me
from worker.lease import steady
from worker.models import Run
from worker.patience import UNREACHABLE
from worker.settings import ROOT, get_settings
from worker.standby import FLAG, SUPERVISOR_LOG, Standby
from worker.turns import next_run

log = logging.getLogger(__name__)

# Set when a supervisor of ours has ended: devices may be free, or its run lost.
supervisor_ended = threading.Event()

_START_LEASES = 12  # so many leases long a supervisor may take to start before it counts as hanging
_lock = threading.Lock()
_standby = Standby()
_supervisors: dict[tuple[str, int], subprocess.Popen[bytes]] = {}


def supervisor_command(*arguments: str) -> list[str]:
    """The command of the process that sees an attempt through; `arguments` are run and attempt, or `--standby`."""
    return [sys.executable, "-m", "worker.supervisor", *arguments]


def start_waiting() -> list[Run]:
    """Starts every waiting run that the free devices of this machine can serve, the oldest first; returns those.

    None while the machine is overloaded.
    """
    started: list[Run] = []
    if overload.here():
        return started
    with _lock:
        while candidate := _candidate():
            # None where another worker was quicker: then the queue looks different now.
            if run := _claim(*candidate):
                _supervise(run)
                started.append(run)
    return started


def prepare() -> None:
    """Has a supervisor ready where a device is free, so that the next run starts at once."""
    if overload.here():
        return
    with database.read() as session:
        free = devices.free_devices(session=session)
    if free:
        with _lock:
            _standby.prepare(supervisor_command(FLAG))


def abandoned(run: Run) -> bool:
    """Whether this process claimed the run and no supervisor has taken it over, nor will."""
    return run.lease_owner == str(me()) and not _has_supervisor(run)


def awaits_adoption(run: Run) -> bool:
    """Whether this process claimed the run for a supervisor that is still starting."""
    return run.lease_owner == str(me()) and _has_supervisor(run)


def _has_supervisor(run: Run) -> bool:
    with _lock:
        supervisor = _supervisors.get((run.id, run.attempt))
        return supervisor is not None and supervisor.poll() is None


def _candidate() -> tuple[Run, list[str]] | None:
    with database.read() as session:
        free = devices.free_devices(session=session)
        if not free:
            return None
        now = session.exec(select(database.clock())).one()
        patience = get_settings().overtaking_seconds
        return next_run(runs.waiting(session=session), free, devices.own_devices(), now, patience)


def _claim(run: Run, chosen: list[str]) -> Run | None:
    seconds = get_settings().lease_seconds
    with database.write() as session:
        return runs.claim(session=session, run_id=run.id, owner=str(me()), devices=chosen, lease_seconds=seconds)


def _supervise(run: Run) -> None:
    """Starts the supervisor; where that fails the run counts as abandoned."""
    folder = get_settings().runs_dir / run.id
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        started = _standby.take(run) or _start_cold(run, folder / SUPERVISOR_LOG)
    except OSError:
        log.exception("the supervisor of run %s cannot be started", run.id)
        return
    log.info("run %s, attempt %d: supervisor %d on %s", run.id, run.attempt, started.pid, ", ".join(run.devices))
    _supervisors[run.id, run.attempt] = started
    threading.Thread(target=_attend, args=(run, started), name=f"supervisor of {run.id}", daemon=True).start()


def _start_cold(run: Run, log_file: Path) -> subprocess.Popen[bytes]:
    return process.start_detached(supervisor_command(run.id, str(run.attempt)), output=log_file, cwd=ROOT)


def _attend(run: Run, started: subprocess.Popen[bytes]) -> None:
    """Holds the run until its supervisor has adopted it; then collects the exit code, so that no zombie stays."""
    _hold(run, started)
    code = started.wait()
    log.info("run %s, attempt %d: supervisor ended with exit code %d", run.id, run.attempt, code)
    with _lock:
        del _supervisors[run.id, run.attempt]
    supervisor_ended.set()


def _hold(run: Run, started: subprocess.Popen[bytes]) -> None:
    """Renews the claim while the supervisor starts: on a busy machine that may take longer than a lease."""
    settings = get_settings()
    deadline = steady() + _START_LEASES * settings.lease_seconds
    while steady() < deadline:
        process.wait_for_end(started, settings.renew_seconds)
        if started.poll() is not None or not _renewed(run):
            return
    log.error("run %s, attempt %d: supervisor %d does not begin; it is ended", run.id, run.attempt, started.pid)
    process.kill_tree(started.pid)


def _renewed(run: Run) -> bool:
    """Whether this process still holds the run: False once the supervisor, or anybody else, does."""
    try:
        with database.write() as session:
            seconds = get_settings().lease_seconds
            runs.renew(session=session, run_id=run.id, attempt=run.attempt, owner=str(me()), lease_seconds=seconds)
    except runs.LeaseLost:
        return False
    except UNREACHABLE as error:
        log.warning("the database does not answer: %s", error)
    return True

"""Starting waiting runs on this machine's devices, each under a supervisor of its own."""

import logging
import subprocess
import sys
import threading
from pathlib import Path

from sqlmodel import select

from worker import database, devices, process, runs
from worker.identity import me
from worker.models import Run
from worker.settings import ROOT, get_settings
from worker.standby import FLAG, SUPERVISOR_LOG, Standby
from worker.turns import next_run

log = logging.getLogger(__name__)

# Set when a supervisor of ours has ended: devices may be free, or its run lost.
supervisor_ended = threading.Event()

_lock = threading.Lock()
_standby = Standby()
_supervisors: dict[tuple[str, int], subprocess.Popen[bytes]] = {}


def supervisor_command(*arguments: str) -> list[str]:
    """The command of the process that sees an attempt through; `arguments` are run and attempt, or `--standby`."""
    return [sys.executable, "-m", "worker.supervisor", *arguments]


def start_waiting() -> list[Run]:
    """Starts every waiting run that the free devices of this machine can serve, the oldest first; returns those."""
    started = []
    with _lock:
        while candidate := _candidate():
            # None where another worker was quicker: then the queue looks different now.
            if run := _claim(*candidate):
                _supervise(run)
                started.append(run)
    return started


def prepare() -> None:
    """Has a supervisor ready where a device is free, so that the next run starts at once."""
    with database.read() as session:
        free = devices.free_devices(session=session)
    if free:
        with _lock:
            _standby.prepare(supervisor_command(FLAG))


def abandoned(run: Run) -> bool:
    """Whether this process claimed the run and no supervisor has taken it over, nor will."""
    with _lock:
        supervisor = _supervisors.get((run.id, run.attempt))
        return run.lease_owner == str(me()) and (supervisor is None or supervisor.poll() is not None)


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
    threading.Thread(target=_wait, args=(run, started), name=f"supervisor of {run.id}", daemon=True).start()


def _start_cold(run: Run, log_file: Path) -> subprocess.Popen[bytes]:
    return process.start_detached(supervisor_command(run.id, str(run.attempt)), output=log_file, cwd=ROOT)


def _wait(run: Run, started: subprocess.Popen[bytes]) -> None:
    """Collects the supervisor's exit code, so that no zombie stays."""
    code = started.wait()
    log.info("run %s, attempt %d: supervisor ended with exit code %d", run.id, run.attempt, code)
    with _lock:
        del _supervisors[run.id, run.attempt]
    supervisor_ended.set()

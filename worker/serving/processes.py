"""The serving processes of this worker: started on a leased device, watched, and ended.

Each is a child of one thread that waits for it. The kernel kills it when the worker ends; when it ends itself, that thread
frees its device at once. On a machine without a GPU it leases no device: the CPU stays free for runs.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlmodel import Session

from training.addresses import authority
from training.limited import FOLDER
from training.run_folder.paths import RUN_VARIABLE, SUPERVISOR_VARIABLE, VLLM_VARIABLE
from training.units import signal_name
from worker.machine import devices, free_devices, processes, programs
from worker.machine.process_identity import hostname, me
from worker.results import results
from worker.serving import memory, models, turns
from worker.serving.joining import JoinedModel
from worker.settings import get_settings
from worker.store import database, served_models
from worker.store.database import UNREACHABLE
from worker.store.tables import ServedModel, ServedState
from worker.store.work import SERVED, LeaseLost
from worker.supervision import holders
from worker.supervision.holders import Holder
from worker.supervision.lease import Lease
from worker.supervision.training_process import end_left_behind

log = logging.getLogger(__name__)

_TOKEN_VARIABLE = "LATHE_SERVING_TOKEN"  # noqa: S105 a name
_STARTING_SECONDS, _READY_SECONDS = 0.2, 1.0  # between two looks at the process
_ENDING_SECONDS = 5.0
_lock = threading.Lock()
_threads: dict[str, threading.Thread] = {}
_stopping = threading.Event()


def program(planned: models.Plan) -> list[str]:
    """The command of a serving process."""
    settings = get_settings()
    idle = str(60 * settings.serve_idle)
    options = ["--host", settings.serve_host, "--idle", idle]
    return [sys.executable, "-m", programs.SERVING.module, *planned.arguments, *options]


def start_waiting() -> None:
    """Starts what waits and fits on this machine; says why the rest waits."""
    if _stopping.is_set():
        return
    with _lock:
        with database.read() as session:
            waiting = served_models.waiting(session=session)
        for served in waiting:
            _start_or_note(served)


def _let_others_wait_no_longer() -> None:
    """As `start_waiting`, if something waits: it may be its turn by now."""
    try:
        with database.read() as session:
            waits = bool(served_models.waiting(session=session))
        if waits:
            start_waiting()
    except UNREACHABLE as error:
        log.warning("the database is unreachable: %s", error)


def recover() -> None:
    """Ends the rows of processes whose worker is gone, and frees their devices."""
    for served in holders.lost(SERVED, _poll):
        if holders.host_of(served) == hostname():
            end_left_behind(_mark(served))
        _finish(served.id, f"Its worker on {holders.host_of(served)} ended.")


def stop() -> None:
    """Ends every process of this worker within about a second. Safe in a signal handler."""
    _stopping.set()


def wait_for_ends() -> None:
    """Waits for a moment until the rows of ended processes are up to date."""
    with _lock:
        ending = list(_threads.values())
    deadline = time.monotonic() + _ENDING_SECONDS
    for thread in ending:
        thread.join(max(deadline - time.monotonic(), 0))


def _start_or_note(served: ServedModel) -> None:
    try:
        if reason := turns.obstacle(served) or models.downloading(served.models):
            _note(served, reason)
            return
        with database.write() as session:
            planned = models.plan(session=session, names=served.models)
            device = _free_gpu(session) if devices.usable_gpus() else None
            memory.check_memory(planned, device)
            seconds, holder = get_settings().lease_seconds, str(me())
            if not served_models.claim(
                session=session, served_id=served.id, holder=holder, device=device, lease_seconds=seconds
            ):
                return
    except models.NotServed as error:
        _finish(served.id, str(error))
        return
    thread = threading.Thread(target=_attend, args=(served, planned, device), name=f"served {served.id}", daemon=True)
    _threads[served.id] = thread
    thread.start()


def _free_gpu(session: Session) -> str | None:
    """The last free GPU: runs take the first."""
    free = free_devices.free(session=session)
    return free[-1] if free else None


def _attend(served: ServedModel, planned: models.Plan, device: str | None) -> None:
    """Starts the process, and watches it until its end. The kernel kills it if this thread ends first."""
    reason = "It could not be started."
    try:
        folder = get_settings().data_dir / "serving"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        output, errors = folder / f"{served.id}.out", folder / f"{served.id}.log"
        process = _started(served, planned, device, output, errors)
        reason = _watched(served, process, output, errors)
    except OSError as error:
        log.exception("served model %s cannot be started", served.id)
        reason = f"It could not be started: {error}"
    finally:
        end_left_behind(_mark(served))  # vLLM's own processes, before its device is free
        _finish(served.id, reason)
        with _lock:
            _threads.pop(served.id, None)
        holders.ended.set()


def _mark(served: ServedModel) -> str:
    return f"served-{served.id}"


def _started(
    served: ServedModel, planned: models.Plan, device: str | None, output: Path, errors: Path
) -> "subprocess.Popen[bytes]":
    with output.open("wb") as out, errors.open("wb") as err:
        # No preexec_fn: this process has threads. The program asks for the parent-death signal itself, and checks that
        # this process lives; the signal comes when this thread ends.
        process = subprocess.Popen(
            program(planned),
            env=_environment(served, device),
            cwd=FOLDER,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    log.info("served model %s: process %d on %s", served.id, process.pid, device or "the CPU")
    return process


def _environment(served: ServedModel, device: str | None) -> dict[str, str]:
    environment = results.environment() | {"PYTHONSAFEPATH": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= {_TOKEN_VARIABLE: served.secret, SUPERVISOR_VARIABLE: str(os.getpid())}
    environment |= devices.variables([device] if device else [])
    environment |= {RUN_VARIABLE: _mark(served), VLLM_VARIABLE: get_settings().vllm_command}
    if device is None:
        # Half of the cores: a run may train beside it.
        threads = max(1, len(os.sched_getaffinity(0)) // 2)
        environment |= {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "DS_ACCELERATOR": "cpu"}
    return environment


def _watched(served: ServedModel, process: "subprocess.Popen[bytes]", output: Path, errors: Path) -> str:
    """Waits for the end of the process, and ends it on request. Returns why it ended."""
    lease, values, added = Lease(SERVED, (served.id,)), dict[str, Any](pid=process.pid), JoinedModel()

    def goes_on() -> bool:
        return process.poll() is None and not _kept(lease, values, ending=True)[1]

    with lease.guarded(lambda _: process.kill()):
        while process.poll() is None:
            row, requested = _kept(lease, values)
            if requested:
                if row:
                    turns.drain(row, goes_on)
                process.kill()
                process.wait()
                return requested
            if "state" not in values and isinstance(port := (told := _last_line(output)).get("port"), int):
                values |= served_models.ready(authority(_reachable_host(), port), str(told.get("note", "")))
                continue
            if row and row.state is ServedState.READY:
                added.load(row)
                _let_others_wait_no_longer()
            processes.wait_for_end(process, _READY_SECONDS if "state" in values else _STARTING_SECONDS)
    return lease.gave_up or _reason(process.returncode, output, errors)


def _kept(lease: Lease[ServedModel], values: dict[str, Any], *, ending: bool = False) -> tuple[ServedModel | None, str]:
    """Renews the lease when it is due and stores new values. Returns the row, if it was read, and why the process should end at
    once, or, unless it is `ending`, when its answers have ended."""
    if _stopping.is_set():
        return None, "Its worker stopped."
    try:
        row = lease.try_once(lambda: lease.keep(**values))
    except LeaseLost:
        return None, "It was deleted."
    return row, row.end_request if row and not ending else ""


def _reachable_host() -> str:
    host = get_settings().serve_host
    return me().host if host in ("0.0.0.0", "::") else host  # noqa: S104 compared, not bound


def _reason(code: int, output: Path, errors: Path) -> str:
    """Why a process ended by itself."""
    if code == 0:
        return f"No request came for {get_settings().serve_idle:g} min."
    if code < 0:
        return f"It was killed by signal {-code} ({signal_name(-code)})."
    error = _last_line(output).get("error")
    if isinstance(error, dict):
        return f"{error.get('field')} {error.get('value') or ''}: {error.get('message')} {error.get('fix')}".strip()
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"It ended with exit code {code}: {lines[-1] if lines else 'it printed nothing'}"


def _last_line(output: Path) -> dict[str, object]:
    """The last line that the program printed, if it is a JSON object."""
    try:
        found = json.loads((output.read_text(encoding="utf-8").splitlines() or [""])[-1])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _note(served: ServedModel, reason: str) -> None:
    if served.reason != reason:
        _tell(lambda session: served_models.note(session=session, served_id=served.id, reason=reason))


def _finish(served_id: str, reason: str) -> None:
    _tell(lambda session: served_models.finish(session=session, served_id=served_id, reason=reason))


def _tell(action: Callable[[Session], object]) -> None:
    """Writes to the database; what an unreachable database misses, `recover` repairs."""
    try:
        with database.write() as session:
            action(session)
    except UNREACHABLE as error:
        log.warning("the database is unreachable: %s", error)


def _poll(served: ServedModel) -> Holder:
    with _lock:
        return holders.holder_of(served, attended=served.id in _threads)

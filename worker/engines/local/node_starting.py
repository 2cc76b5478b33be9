"""What a worker does for runs whose first machine is another one: starts their ranks here, and tidies up after lost ones."""

import logging
import subprocess
import sys
import threading

from training.run_folder.paths import RUN_VARIABLE
from worker.machine import processes
from worker.machine.process_identity import Identity, hostname
from worker.settings import ROOT, get_settings
from worker.store import database, nodes
from worker.store.tables import RunNode

log = logging.getLogger(__name__)

_END_SECONDS = 5.0
_started: dict[tuple[str, int, int], subprocess.Popen[bytes]] = {}
_lock = threading.Lock()


def start_nodes() -> None:
    """Starts a process for every part that a run's supervisor has placed on this machine."""
    with database.read() as session:
        placed = nodes.unclaimed(session=session, host=hostname())
        held = nodes.held_on(session=session, host=hostname())
    with _lock:
        for node in placed:
            if (started := _started.get(node.key)) is None or started.poll() is not None:
                _started[node.key] = _start(node)
        for key in [key for key, started in _started.items() if started.poll() is not None]:
            del _started[key]
    for node in held:
        _end_if_lost(node)


def _start(node: RunNode) -> subprocess.Popen[bytes]:
    log.info("run %s, attempt %d: machine %d starts here", node.run_id, node.attempt, node.rank)
    folder = get_settings().runs_dir / node.run_id
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-m", "worker.engines.local.node", node.run_id, str(node.attempt), str(node.rank)]
    return processes.start_detached(command, output=folder / f"node-{node.rank}.log", cwd=ROOT)


def _end_if_lost(node: RunNode) -> None:
    """Says that a part has ended whose process was killed: its ranks have ended with it."""
    holder = Identity.parse(node.holder)
    if holder is None or not holder.here or holder.alive:
        return
    processes.wait_gone(processes.marked(RUN_VARIABLE, node.run_id), _END_SECONDS)
    with database.write() as session:
        nodes.end(session=session, node=node, exit_code=None, problem="Its process was killed.")

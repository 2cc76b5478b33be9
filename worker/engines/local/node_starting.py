"""What a worker does for runs whose first machine is another one: starts their ranks here, and tidies up after lost ones."""

import sys

from training.run_folder.paths import RUN_VARIABLE
from worker.machine import processes
from worker.machine.process_identity import hostname, me
from worker.settings import get_settings
from worker.store import database, nodes
from worker.store.tables import RunNode
from worker.store.work import NODE
from worker.supervision.holders import Holder, Supervisors

_END_SECONDS = 5.0
_supervisors = Supervisors(NODE)


def start_nodes() -> None:
    """Starts a process for every part that a run's supervisor has placed on this machine."""
    with database.read() as session:
        placed = nodes.unclaimed(session=session, host=hostname())
        held = nodes.held_on(session=session, host=hostname())
    for node in placed:
        with _supervisors.lock:
            if _claimed(node):
                command = [sys.executable, "-m", "worker.engines.local.node", *map(str, node.key)]
                folder = get_settings().runs_dir / node.run_id
                _supervisors.start(node, command, folder / f"node-{node.rank}.log")
    for node in held:
        _end_if_lost(node)


def _claimed(node: RunNode) -> bool:
    with database.write() as session:
        seconds = get_settings().lease_seconds
        return nodes.claim(session=session, node=node, owner=str(me()), lease_seconds=seconds)


def _end_if_lost(node: RunNode) -> None:
    """Says that a part has ended whose process was killed: its ranks have ended with it."""
    if _supervisors.poll(node) is not Holder.GONE:
        return
    processes.wait_gone(processes.marked(RUN_VARIABLE, node.run_id), _END_SECONDS)
    with database.write() as session:
        nodes.end(session=session, node=node, exit_code=None, problem="Its process ended unexpectedly.")

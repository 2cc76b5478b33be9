"""Starts waiting runs on this machine's devices, each with its own supervisor."""

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator

from sqlmodel import Session

from training.config.choices import EngineName
from training.run_folder import full_disk
from training.run_folder.paths import RUN_VARIABLE, SUPERVISOR_LOG
from worker.engines.local import placement
from worker.machine import devices, free_devices, overload, processes
from worker.machine.process_identity import hostname, me
from worker.settings import get_settings
from worker.store import claims, database, nodes, served_models, waiting
from worker.store.tables import Run, RunNode
from worker.store.tables.row import whole
from worker.store.work import NODE, RUN
from worker.supervision import holders
from worker.supervision.holders import FLAG, Holder, Standby, Supervisors
from worker.supervision.training_process import end_left_behind

log = logging.getLogger(__name__)

_standby = Standby()
supervisors = Supervisors(RUN)
_END_SECONDS = 5.0
node_supervisors = Supervisors(NODE)


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
    with supervisors.lock:
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
        held = served_models.on_devices(session=session)
        yielding = [device for device in free_devices.offered(session=session) if device in held]
        usable = [*free_devices.free(session=session), *yielding]
        found = _next(session, usable, yielding=held) if held and usable else None
    if found and (needed := held.keys() & set(found[1])):
        with database.write() as session:
            served_models.request_devices(
                session=session, devices=needed, reason=f"Run {found[0].id} needs its device."
            )


def prepare() -> None:
    """Keeps a supervisor process ready while a device is free, so that the next run starts at once."""
    if overload.here():
        return
    with database.read() as session:
        free = free_devices.free(session=session)
    if free:
        with supervisors.lock:
            _standby.prepare(supervisor_command(FLAG))


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
    return whole(run for run in found if run.engine is EngineName.LOCAL)


def _claim(run: Run, chosen: list[str]) -> Run | None:
    seconds = get_settings().lease_seconds
    count = len(placement.hosts(chosen))
    placed = placement.changes(placement.settings_of(run), count) if run.num_machines > 1 else None
    with database.write() as session:
        return claims.claim(
            session=session, run_id=run.id, owner=str(me()), devices=chosen, lease_seconds=seconds, placed=placed
        )


def _supervise(run: Run) -> None:
    """Starts the supervisor; if that fails, the run counts as lost."""
    alone = run.num_machines == 1
    module = {} if alone else {"module": "worker.engines.local.gang"}
    command = supervisor_command(run.id, str(run.attempt), **module)
    output = get_settings().runs_dir / run.id / SUPERVISOR_LOG
    supervisors.start(run, command, output, ready=lambda: _standby.take(run) if alone else None)


def next_run(
    queued: Iterable[Run],
    free: list[str],
    own: list[str],
    now: float,
    overtaking_seconds: float,
    gang: Callable[[Run, list[str]], list[str] | None] = lambda _run, _here: None,
) -> tuple[Run, list[str]] | None:
    """The run to start next and its devices, or None if no run can start.

    `queued` are queued runs, the oldest first; `free` of this machine's devices `own` are not leased; `now` is in seconds by
    the database's clock. Later runs that need fewer devices may overtake a run that needs more than are free, until it has
    been queued for `overtaking_seconds`; then free devices are kept for it. A run that needs more devices than this machine has
    never blocks others here. `gang` returns the devices of all machines of a run on several, given those chosen here.
    """
    for run in queued:
        machines = run.num_machines
        needed = int(run.settings.get("num_processes", 1)) // machines
        chosen = devices.choose(needed, free)
        if chosen and machines > 1:
            chosen = gang(run, chosen)
        if chosen:
            return run, chosen
        if now - run.queued_at > overtaking_seconds and devices.choose(needed, own):
            return None
    return None


def start_nodes() -> None:
    """Starts a process for every part that a run's supervisor has placed on this machine."""
    with database.read() as session:
        placed = nodes.unclaimed(session=session, host=hostname())
        held = nodes.held_on(session=session, host=hostname())
    for node in placed:
        with node_supervisors.lock:
            if _claim_node(node):
                command = [sys.executable, "-m", "worker.engines.local.node", *map(str, node.key)]
                folder = get_settings().runs_dir / node.run_id
                node_supervisors.start(node, command, folder / f"node-{node.rank}.log")
    for node in held:
        _end_if_lost(node)


def _claim_node(node: RunNode) -> bool:
    with database.write() as session:
        seconds = get_settings().lease_seconds
        return nodes.claim(session=session, node=node, owner=str(me()), lease_seconds=seconds)


def _end_if_lost(node: RunNode) -> None:
    """Says that a part has ended whose process was killed: its ranks have ended with it."""
    if node_supervisors.poll(node) is not Holder.GONE:
        return
    processes.wait_gone(processes.marked(RUN_VARIABLE, node.run_id), _END_SECONDS)
    with database.write() as session:
        nodes.end(session=session, node=node, exit_code=None, problem="Its process ended unexpectedly.")


class LocalEngine:
    """Runs on the devices of the workers."""

    name = EngineName.LOCAL
    asks_elsewhere = False

    def submit_waiting(self) -> list[Run]:
        start_nodes()
        return start_waiting()

    def poll(self, run: Run) -> Holder:
        return supervisors.poll(run)

    def cancel(self, run: Run) -> None:
        """Kills what is left of the attempt on this machine, a hanging supervisor too: two must never train at once."""
        if holders.host_of(run) != hostname():
            return
        if claims.adopted(run):  # otherwise the holder is a worker, which may hold other runs
            holders.end_holder(run)
        end_left_behind(run.id)
        full_disk.give_up_reserve(get_settings().runs_dir / run.id)

    def prepare(self) -> None:
        prepare()

    def reason_to_wait(self, *, session: Session, run: Run) -> str:
        return placement.reason_to_wait(session=session, run=run) if run.num_machines > 1 else ""

    def capacity(self) -> None:
        """None: workers report their machines."""

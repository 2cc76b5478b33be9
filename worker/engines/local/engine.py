"""The engine `local`: each worker starts runs on its own devices, under a supervisor of its own."""

from pathlib import Path

from training.config.choices import EngineName
from training.run_folder import full_disk
from worker.engines.engine import Abilities, Capacity, Holder, Pool
from worker.engines.local import node_starting, starting
from worker.machine import processes
from worker.machine.process_identity import Identity, hostname
from worker.settings import get_settings
from worker.store import claims, database
from worker.store.system import machines
from worker.store.tables import Run
from worker.supervision.standby import SUPERVISOR_LOG
from worker.supervision.training_process import end_left_behind


class LocalEngine:
    """Runs on the devices of the workers."""

    name = EngineName.LOCAL
    abilities = Abilities(several_machines=True)

    def submit_waiting(self) -> list[Run]:
        node_starting.start_nodes()
        return starting.start_waiting()

    def poll(self, run: Run) -> Holder:
        owner = Identity.parse(run.lease_owner)
        # The embedded database is used by this machine only.
        if starting.abandoned(run) or (
            owner is not None and owner.provably_dead(only_machine=not get_settings().database_url)
        ):
            return Holder.GONE
        if starting.awaits_adoption(run):
            return Holder.STARTING
        return Holder.ALIVE if owner is not None and owner.here and owner.alive else Holder.UNKNOWN

    def cancel(self, run: Run) -> None:
        """Kills what is left of the attempt on this machine, a hanging supervisor too: two must never train at once."""
        owner = Identity.parse(run.lease_owner)
        if owner is None or owner.host != hostname():
            return
        living = owner.here and owner.alive and not starting.abandoned(run)
        if living and claims.adopted(run):  # otherwise the holder is a worker, which may hold other runs
            processes.kill_tree(owner.pid)
        end_left_behind(run.id)
        full_disk.give_up_reserve(get_settings().runs_dir / run.id)

    def logs(self, run: Run) -> list[Path]:
        return [get_settings().runs_dir / run.id / SUPERVISOR_LOG]

    def capacity(self) -> Capacity:
        with database.read() as session:
            known, now = machines.listing(session=session), database.now(session=session)
            queue = machines.queue(session=session)
        pools = [
            Pool(machine.name, 1, {"up" if machines.is_fresh(machine, now) else "lost": 1}, gpus=len(machine.devices))
            for machine in known
        ]
        return Capacity(self.name, pools, queue.waiting, queue.running)

"""The engine `local`: each worker starts runs on its own devices, under a supervisor of its own."""

from pathlib import Path

from training.config.choices import EngineName
from training.run_folder import full_disk
from worker.engines.engine import Abilities, Capacity, Pool
from worker.engines.local import node_starting, starting
from worker.machine.process_identity import hostname
from worker.settings import get_settings
from worker.store import claims, database, machines
from worker.store.tables import Run
from worker.supervision import holders
from worker.supervision.holders import Holder
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
        return starting.supervisors.poll(run)

    def cancel(self, run: Run) -> None:
        """Kills what is left of the attempt on this machine, a hanging supervisor too: two must never train at once."""
        if holders.host_of(run) != hostname():
            return
        if claims.adopted(run):  # otherwise the holder is a worker, which may hold other runs
            holders.end_holder(run)
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

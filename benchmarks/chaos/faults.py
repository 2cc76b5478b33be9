"""The faults of benchmarks.chaos: plans them from a seed and injects them."""

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
from sqlmodel import Session, col, select

from app.local.services import Service
from benchmarks.chaos.installation import LEASE_SECONDS, Installation
from benchmarks.chaos.supervisor import LIGHT
from training.run_folder.paths import RUN_VARIABLE
from worker import celery_app
from worker.machine import processes as process
from worker.machine.process_identity import Identity
from worker.store import claims, database
from worker.store.tables import Run, Status

KILL, FREEZE, EMPTY_QUEUE, REPEAT_MESSAGES = "kill", "freeze", "empty queue", "repeat messages"
OF_A_RUN = ("supervisor", "launcher", "rank")
TARGETS = (*OF_A_RUN, "worker", "web", "broker", "everything")
CONTROLLER, NODE, TIME_LIMIT, REQUEUE = "slurmctld", "slurmd", "time limit", "requeue"
OF_SLURM = (CONTROLLER, NODE, TIME_LIMIT, REQUEUE)
"""Daemons that are killed; the signal before the time limit; `scontrol requeue`."""
SLURM_SHARE = 0.4
REPEATS = 20
REAL_SHARE = 0.2  # share of faults in real training runs, which take long to restart
_WEIGHTS = (5, 3, 5, 4, 1, 2, 1)
_SHORT_FREEZE = (0.2, 0.5 * LEASE_SECONDS)
_LONG_FREEZE = (LEASE_SECONDS, 2.5 * LEASE_SECONDS)


@dataclass(frozen=True)
class Fault:
    """An action on a target. `seconds` is the duration of a freeze, `pick` (0 to 1) selects one of several targets, `pause`
    is the time before the fault in seconds."""

    action: str
    target: str = ""
    seconds: float = 0.0
    pick: float = 0.0
    real: bool = False
    pause: float = 0.0

    @property
    def kind(self) -> str:
        return f"{self.action} {self.target}".strip()


def plan(seed: int, mean_pause: float, *, slurm: bool = False) -> Iterator[Fault]:
    """Yields an endless sequence of faults that depends only on the seed; `slurm` adds those of a cluster."""
    chance = random.Random(seed)
    while True:
        if slurm and chance.random() < SLURM_SHARE:
            yield Fault(KILL, chance.choice(OF_SLURM), pick=chance.random(), pause=chance.uniform(0, 2 * mean_pause))
            continue
        action = chance.choices((KILL, FREEZE, EMPTY_QUEUE, REPEAT_MESSAGES), (12, 6, 1, 1))[0]
        target = chance.choices(TARGETS, _WEIGHTS)[0]
        seconds = chance.uniform(*chance.choice((_SHORT_FREEZE, _LONG_FREEZE)))
        pick, real, pause = chance.random(), chance.random() < REAL_SHARE, chance.uniform(0, 2 * mean_pause)
        if action in (KILL, FREEZE):
            yield Fault(action, target, seconds if action == FREEZE else 0.0, pick, real, pause)
        else:
            yield Fault(action, "", 0.0, pick, real, pause)


@dataclass
class Injector:
    """Injects faults and counts them: by kind, and those in real training runs."""

    installation: Installation
    made: dict[str, int] = field(default_factory=dict)
    of_real_runs: int = 0
    _frozen: list[tuple[float, list[psutil.Process]]] = field(default_factory=list)

    def make(self, fault: Fault) -> bool:
        """Injects the fault. Returns False if it has no target now."""
        done, run = self._strike(fault)
        if done:
            self.made[fault.kind] = self.made.get(fault.kind, 0) + 1
            self.of_real_runs += run is not None and not run.name.startswith(LIGHT)
        return done

    def thaw(self, *, everything: bool = False) -> None:
        """Thaws processes that were frozen long enough, or all."""
        now = time.monotonic()
        for due in [due for due in self._frozen if everything or due[0] <= now]:
            self._frozen.remove(due)
            process.send(due[1], signal.SIGCONT)

    def _strike(self, fault: Fault) -> tuple[bool, Run | None]:
        if fault.action == EMPTY_QUEUE:
            return self.installation.empty_queue(), None
        run = _chosen(fault)
        if fault.action == REPEAT_MESSAGES:
            return run is not None and all(celery_app.notify(run.id) for _ in range(REPEATS)), None
        if fault.target in OF_SLURM:
            return self._strike_slurm(fault, run), run
        if fault.target == "everything":
            victims = self._all()
        elif fault.target in OF_A_RUN:
            victims = _of_run(run, fault) if run else []
        else:
            victims, run = self._service(fault), None
        victims = [victim for victim in victims if not process.is_gone(victim)]
        process.send(victims, signal.SIGKILL if fault.action == KILL else signal.SIGSTOP)
        if fault.action == FREEZE:
            self._frozen.append((time.monotonic() + fault.seconds, victims))
        return bool(victims), run

    def _strike_slurm(self, fault: Fault, run: Run | None) -> bool:
        cluster = self.installation.cluster
        assert cluster is not None
        if fault.target in (CONTROLLER, NODE):
            name = CONTROLLER if fault.target == CONTROLLER else cluster.names[int(fault.pick * len(cluster.names))]
            if name in cluster.daemons:
                cluster.kill(name)
                return True
            return False
        if run is None or not run.job_id:
            return False
        command = ["scancel", "--batch", "--signal=USR1"] if fault.target == TIME_LIMIT else ["scontrol", "requeue"]
        try:
            cluster.call(*command, run.job_id)
        except subprocess.SubprocessError:  # the controller is away, or the job has ended
            return False
        return True

    def _service(self, fault: Fault) -> list[psutil.Process]:
        installation = self.installation
        named = {"web": [installation.web], "broker": [installation.broker], "worker": installation.workers}
        services = named[fault.target]
        return _processes([services[int(fault.pick * len(services))]])

    def _all(self) -> list[psutil.Process]:
        """Returns all processes. Those that start others come first, so that they start fewer meanwhile."""
        ours = _processes(self.installation.services)
        return list(dict.fromkeys([*ours, *self.installation.processes()]))


def running(session: Session) -> list[Run]:
    """Returns the active runs, the oldest first."""
    return list(session.exec(select(Run).where(Run.status == Status.RUNNING).order_by(col(Run.id))))


def _chosen(fault: Fault) -> Run | None:
    with database.read() as session:
        under_way = running(session)
    matching = [run for run in under_way if run.name.startswith(LIGHT) != fault.real] or under_way
    return matching[int(fault.pick * len(matching))] if matching else None


def _of_run(run: Run, fault: Fault) -> list[psutil.Process]:
    """Returns the run's supervisor, its launcher, or one of its ranks, by the fault's target."""
    if fault.target == "supervisor":
        owner = Identity.parse(run.holder)
        # Right after the claim, the worker holds the run.
        in_job = owner is not None and run.job_id is not None and psutil.pid_exists(owner.pid)
        return [psutil.Process(owner.pid)] if owner and (in_job or owner.alive) and claims.adopted(run) else []
    trainers = process.marked(RUN_VARIABLE, run.id)
    numbers = {trainer.pid for trainer in trainers}
    matching = []
    for trainer in trainers:
        with contextlib.suppress(psutil.Error):
            if (trainer.ppid() in numbers) == (fault.target == "rank"):
                matching.append(trainer)
    return matching[int(fault.pick * len(matching)) :][:1]


def _processes(services: list[Service]) -> list[psutil.Process]:
    processes = []
    for service in services:
        with contextlib.suppress(psutil.NoSuchProcess):
            if service.pid is not None and service.ended() is None:
                processes.append(psutil.Process(service.pid))
    return processes

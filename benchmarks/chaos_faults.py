"""The faults of benchmarks.chaos: a seeded plan of them, and how each is made."""

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
from sqlmodel import Session, col, select

from app.services import Service
from benchmarks.chaos_installation import LEASE_SECONDS, Installation
from benchmarks.chaos_supervisor import LIGHT
from worker import claims, database, process, queue
from worker.identity import Identity
from worker.models import Run, Status
from worker.trainer import RUN_MARK

KILL, FREEZE, EMPTY_QUEUE, REPEAT_MESSAGES = "kill", "freeze", "empty queue", "repeat messages"
OF_A_RUN = ("supervisor", "launcher", "rank")
TARGETS = (*OF_A_RUN, "worker", "web", "broker", "everything")
REPEATS = 20
REAL_SHARE = 0.2  # of the faults of a run's processes, those in a run that really trains: it takes long to begin again
_WEIGHTS = (5, 3, 5, 4, 1, 2, 1)
_SHORT_FREEZE = (0.2, 0.5 * LEASE_SECONDS)
_LONG_FREEZE = (LEASE_SECONDS, 2.5 * LEASE_SECONDS)


@dataclass(frozen=True)
class Fault:
    """What is done to what. `seconds`: how long it is frozen; `pick`: which of several, between 0 and 1; `pause`: the
    seconds before it."""

    action: str
    target: str = ""
    seconds: float = 0.0
    pick: float = 0.0
    real: bool = False
    pause: float = 0.0

    @property
    def kind(self) -> str:
        return f"{self.action} {self.target}".strip()


def plan(seed: int, mean_pause: float) -> Iterator[Fault]:
    """Faults without end, the same for the same seed, whatever happens meanwhile."""
    chance = random.Random(seed)
    while True:
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
    """Makes faults, and counts those that were made: of each kind, and how many struck runs that really train."""

    installation: Installation
    made: dict[str, int] = field(default_factory=dict)
    of_real_runs: int = 0
    _frozen: list[tuple[float, list[psutil.Process]]] = field(default_factory=list)

    def make(self, fault: Fault) -> bool:
        """Makes the fault; False where there is nothing that it could strike at this moment."""
        done, run = self._strike(fault)
        if done:
            self.made[fault.kind] = self.made.get(fault.kind, 0) + 1
            self.of_real_runs += run is not None and not run.name.startswith(LIGHT)
        return done

    def thaw(self, *, everything: bool = False) -> None:
        """Lets go on what has been frozen for its time, or all of it."""
        now = time.monotonic()
        for due in [due for due in self._frozen if everything or due[0] <= now]:
            self._frozen.remove(due)
            process.send(due[1], signal.SIGCONT)

    def _strike(self, fault: Fault) -> tuple[bool, Run | None]:
        if fault.action == EMPTY_QUEUE:
            return self.installation.empty_queue(), None
        run = _chosen(fault)
        if fault.action == REPEAT_MESSAGES:
            return run is not None and all(queue.ring(run.id) for _ in range(REPEATS)), None
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

    def _service(self, fault: Fault) -> list[psutil.Process]:
        installation = self.installation
        named = {"web": [installation.web], "broker": [installation.broker], "worker": installation.workers}
        services = named[fault.target]
        return _processes([services[int(fault.pick * len(services))]])

    def _all(self) -> list[psutil.Process]:
        """Those that start others first: what they would start meanwhile is fewer."""
        ours = _processes(self.installation.services)
        return list(dict.fromkeys([*ours, *self.installation.processes()]))


def running(session: Session) -> list[Run]:
    """The runs that are under way, the oldest first."""
    return list(session.exec(select(Run).where(Run.status == Status.RUNNING).order_by(col(Run.id))))


def _chosen(fault: Fault) -> Run | None:
    with database.read() as session:
        under_way = running(session)
    wanted = [run for run in under_way if run.name.startswith(LIGHT) != fault.real] or under_way
    return wanted[int(fault.pick * len(wanted))] if wanted else None


def _of_run(run: Run, fault: Fault) -> list[psutil.Process]:
    """The run's supervisor, its launcher, or one of its ranks."""
    if fault.target == "supervisor":
        owner = Identity.parse(run.lease_owner)
        # For a moment it is the worker that has claimed the run.
        return [psutil.Process(owner.pid)] if owner and owner.alive and claims.adopted(run) else []
    trainers = process.marked(RUN_MARK, run.id)
    numbers = {trainer.pid for trainer in trainers}
    found = []
    for trainer in trainers:
        with contextlib.suppress(psutil.Error):
            if (trainer.ppid() in numbers) == (fault.target == "rank"):
                found.append(trainer)
    return found[int(fault.pick * len(found)) :][:1]


def _processes(services: list[Service]) -> list[psutil.Process]:
    found = []
    for service in services:
        with contextlib.suppress(psutil.NoSuchProcess):
            if service.pid is not None and service.ended() is None:
                found.append(psutil.Process(service.pid))
    return found

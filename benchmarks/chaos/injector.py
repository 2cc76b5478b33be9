"""Injects the faults of benchmarks.chaos, and keeps what each of them struck."""

import contextlib
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psutil
from sqlmodel import select

from app.local.services import Service
from benchmarks.chaos import faults
from benchmarks.chaos.faults import Fault
from benchmarks.chaos.installation import Installation
from benchmarks.chaos.kinds import LIGHT
from benchmarks.chaos.phases import END, Watch, Watches
from benchmarks.chaos.surroundings import Load
from training.rewards.reward_child import PROGRAM as REWARD_PROGRAM
from training.run_folder.paths import RUN_VARIABLE
from worker import celery_app
from worker.machine import processes as process
from worker.machine.process_identity import Identity
from worker.machine.programs import SERVING
from worker.store import claims, database
from worker.store.tables import Build, Evaluation, Run, ServedModel, ServedState, Status

ARMED_SECONDS = 120.0
"""How long a fault waits for its target; one that waits for the end of a run has no limit."""
_SPARED = 3
"""Of so many attempts, one has no fault after its last step, and the others have one: runs should end during the session."""
_SCORING = ("training", "sampling", "evaluating")

T = TypeVar("T")


@dataclass(frozen=True)
class Strike:
    """A fault that was injected. Those of a run have its id, kind, ranks, attempt and phase; `late`: after its last step."""

    at: float
    fault: Fault
    run_id: str = ""
    kind: str = ""
    ranks: int = 0
    attempt: int = 0
    phase: str = ""
    late: bool = False


@dataclass
class Injector:
    """Injects faults, at once or as soon as their moment comes."""

    installation: Installation
    watches: Watches
    load: Load
    strikes: list[Strike] = field(default_factory=list)
    missed: int = 0
    armed: list[tuple[float, Fault]] = field(default_factory=list)
    _later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def arm(self, fault: Fault) -> None:
        """Injects the fault as soon as it has a target at its moment."""
        if fault.action == faults.SLOW_DISK and not self.installation.disk.works:
            self.missed += 1
        else:
            self.armed.append((time.monotonic(), fault))

    def look(self) -> list[Strike]:
        """Injects the faults whose moment is now, ends those that have lasted long enough; returns the new strikes."""
        self.restore()
        new: list[Strike] = []
        if not self.armed:
            return new
        watches, tried = self.watches.read(), set[tuple[str, str]]()
        for one in list(self.armed):
            since, fault = one
            # Of several that wait for the end of a run, the oldest one is next: else the one that strikes earliest always were.
            if fault.moment != faults.NOW and (fault.subject, fault.moment) in tried:
                continue
            tried.add((fault.subject, fault.moment))
            if strike := self._strike(fault, watches):
                new.append(strike)
                self.strikes.append(strike)
            elif fault.moment != END and time.monotonic() - since > ARMED_SECONDS:
                self.missed += 1
            else:
                continue
            self.armed.remove(one)
        return new

    def restore(self, *, everything: bool = False) -> None:
        """Thaws processes that were frozen long enough, ends load and slow disks; or all."""
        now = time.monotonic()
        for due in [due for due in self._later if everything or due[0] <= now]:
            self._later.remove(due)
            due[1]()

    def _strike(self, fault: Fault, watches: list[Watch]) -> Strike | None:
        if fault.of_a_run or fault.target in (faults.TIME_LIMIT, faults.REQUEUE):
            chosen = _chosen(fault, watches, self._moments(fault))
            run = _running(chosen.run_id) if chosen else None
            if chosen is None or run is None or not self._of_run(fault, chosen, run):
                return None
            where = chosen.run_id, chosen.kind, chosen.world_size, run.attempt, chosen.phase
            return Strike(time.time(), fault, *where, chosen.ended_at is not None)
        return Strike(time.time(), fault) if self._of_installation(fault, watches) else None

    def _moments(self, fault: Fault) -> Callable[[Watch], bool]:
        """Whether a run is at the moment of the fault, and long enough."""
        if fault.moment == faults.NOW:
            return lambda _: True
        rare = self._rarest() if fault.moment == faults.RAREST else {END}
        late = {(strike.run_id, strike.attempt) for strike in self.strikes if strike.late}

        def is_there(watch: Watch) -> bool:
            moment = watch.phase if fault.moment == faults.RAREST else END
            elapsed = watch.elapsed(moment)
            if moment == END and (watch.attempt % _SPARED == 0 or (watch.run_id, watch.attempt) in late):
                return False
            return moment in rare and elapsed is not None and elapsed >= self._point(moment, fault)

        return is_there

    def _point(self, moment: str, fault: Fault) -> float:
        return self.watches.durations.within(moment, fault.point)

    def _rarest(self) -> set[str]:
        """The phases, of those that runs were seen in, that were struck least."""
        struck = Counter(strike.phase for strike in self.strikes)
        seen = set(self.watches.durations.seen)
        least = min((struck[phase] for phase in seen), default=0)
        return {phase for phase in seen if struck[phase] <= least}

    def _of_run(self, fault: Fault, watch: Watch, run: Run) -> bool:
        if fault.target in faults.OF_SLURM:
            return self._job(fault, run)
        if fault.action == faults.SLOW_DISK:
            return self._slow_disk(fault)
        return self._send(fault, _processes_of(fault, watch, run))

    def _of_installation(self, fault: Fault, watches: list[Watch]) -> bool:
        if fault.action == faults.EMPTY_QUEUE:
            return self.installation.empty_queue()
        if fault.action == faults.REPEAT_MESSAGES:
            run_ids = [_pick(watches, fault).run_id] if watches else []
            return bool(run_ids) and all(celery_app.notify(run_id) for run_id in run_ids * faults.REPEATS)
        if fault.action == faults.LOAD:
            return self.load.start() and self._then(fault, self.load.stop)
        if fault.target in faults.OF_SLURM:
            return self._daemon(fault)
        if fault.target in faults.OF_A_RESULT:
            return self._send(fault, _using_results(fault))
        return self._send(fault, self._all() if fault.target == faults.EVERYTHING else self._service(fault))

    def _send(self, fault: Fault, victims: list[psutil.Process]) -> bool:
        victims = [victim for victim in victims if not process.is_gone(victim)]
        process.send(victims, signal.SIGKILL if fault.action == faults.KILL else signal.SIGSTOP)
        if fault.action == faults.FREEZE and victims:
            return self._then(fault, lambda: process.send(victims, signal.SIGCONT))
        return bool(victims)

    def _slow_disk(self, fault: Fault) -> bool:
        self.installation.disk.slow(fault.delay)
        return self._then(fault, lambda: self.installation.disk.slow(0))

    def _then(self, fault: Fault, end: Callable[[], object]) -> bool:
        self._later.append((time.monotonic() + fault.seconds, end))
        return True

    def _daemon(self, fault: Fault) -> bool:
        cluster = self.installation.cluster
        assert cluster is not None
        name = _pick(cluster.names, fault) if fault.target == faults.NODE else fault.target
        if name not in cluster.daemons:
            return False
        cluster.kill(name)
        return True

    def _job(self, fault: Fault, run: Run) -> bool:
        cluster = self.installation.cluster
        assert cluster is not None
        if not run.job_id:
            return False
        timed = fault.target == faults.TIME_LIMIT
        command = ["scancel", "--batch", "--signal=USR1"] if timed else ["scontrol", "requeue"]
        try:
            cluster.call(*command, run.job_id)
        except subprocess.SubprocessError:  # the controller is away, or the job has ended
            return False
        return True

    def _service(self, fault: Fault) -> list[psutil.Process]:
        installation = self.installation
        named = {
            faults.WEB: [installation.web],
            faults.BROKER: [installation.broker],
            faults.WORKER: installation.workers,
        }
        return _processes([_pick(named[fault.target], fault)])

    def _all(self) -> list[psutil.Process]:
        """Returns all processes. Those that start others come first, so that they start fewer meanwhile."""
        ours = _processes(self.installation.services)
        return list(dict.fromkeys([*ours, *self.installation.processes()]))


def _chosen(fault: Fault, watches: list[Watch], is_there: Callable[[Watch], bool]) -> Watch | None:
    """A run of those that the fault may strike, at its moment."""
    matching = [watch for watch in watches if _subject(watch) == (fault.subject or _subject(watch))]
    if fault.target == faults.REWARDS:
        matching = [watch for watch in matching if watch.kind.startswith("grpo") and watch.phase in _SCORING]
    there = [watch for watch in matching if is_there(watch)]
    return _pick(there, fault) if there else None


def _subject(watch: Watch) -> str:
    if watch.kind == LIGHT:
        return faults.LIGHT_RANKS
    return faults.TWO if watch.world_size > 1 else faults.ONE


def _running(run_id: str) -> Run | None:
    with database.read() as session:
        run = session.get(Run, run_id)
    return run if run is not None and run.status is Status.RUNNING else None


def _processes_of(fault: Fault, watch: Watch, run: Run) -> list[psutil.Process]:
    """The run's supervisor, its launcher, one of its ranks, or a process that computes rewards, by the fault's target."""
    if fault.target == faults.SUPERVISOR:
        return _supervisor(run)
    ranks = [rank for number in watch.ranks.values() if (rank := _rank(number, run.id))]
    if fault.target == faults.REWARDS:
        ranks = [child for rank in ranks for child in process.descendants(rank.pid) if _computes_rewards(child)]
    elif fault.target == faults.LAUNCHER:
        ranks = [parent for rank in ranks if (parent := _parent(rank, run))]
    return [_pick(ranks, fault)] if ranks else []


def _supervisor(run: Run) -> list[psutil.Process]:
    owner = Identity.parse(run.holder)
    # Right after the claim, the worker holds the run.
    in_job = owner is not None and run.job_id is not None and psutil.pid_exists(owner.pid)
    return [psutil.Process(owner.pid)] if owner and (in_job or owner.alive) and claims.adopted(run) else []


def _rank(number: int, run_id: str) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        rank = psutil.Process(number)
        return rank if rank.environ().get(RUN_VARIABLE) == run_id and not process.is_gone(rank) else None
    return None


def _parent(rank: psutil.Process, run: Run) -> psutil.Process | None:
    parent = rank.parent()
    return _rank(parent.pid, run.id) if parent else None


def _computes_rewards(child: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(REWARD_PROGRAM in word for word in child.cmdline())
    return False


def _using_results(fault: Fault) -> list[psutil.Process]:
    """The supervisor of an evaluation or build, or one of its processes; or the process of a served model."""
    with database.read() as session:
        if fault.target == faults.SERVED:
            busy = ServedModel.state.in_((ServedState.STARTING, ServedState.READY))  # type: ignore[attr-defined]
            found = [_with(served.pid, SERVING.module) for served in session.exec(select(ServedModel).where(busy))]
        else:
            table = Evaluation if fault.target == faults.EVALUATION else Build
            rows: Any = session.exec(select(table).where(table.status == Status.RUNNING))
            found = [_with(owner.pid, row.id) for row in rows if (owner := Identity.parse(row.holder))]
    own = [one for one in found if one]
    own += [child for one in own for child in process.descendants(one.pid)]
    return [_pick(own, fault)] if own else []


def _with(number: int | None, word: str) -> psutil.Process | None:
    """The process with this number, if its command has the word: right after the claim, a worker holds the work."""
    with contextlib.suppress(psutil.Error):
        one = psutil.Process(number) if number else None
        return one if one and word in one.cmdline() else None
    return None


def _processes(services: list[Service]) -> list[psutil.Process]:
    processes = []
    for service in services:
        with contextlib.suppress(psutil.NoSuchProcess):
            if service.pid is not None and service.ended() is None:
                processes.append(psutil.Process(service.pid))
    return processes


def _pick(several: Sequence[T], fault: Fault) -> T:
    return several[int(fault.pick * len(several))]

"""Runs a simulated cluster: the worker's own rounds and engine, real database rows and checkpoint folders, in virtual time."""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import event
from sqlmodel import col, select

from benchmarks.scale.cluster import programs
from benchmarks.scale.cluster.controller import Controller, SimulatedJob
from benchmarks.scale.cluster.ledger import Account
from benchmarks.scale.cluster.parameters import DAY, Parameters, RunClass
from benchmarks.scale.cluster.stand_in import StandIn
from benchmarks.scale.cluster.supervisor import Shared, Supervisor
from benchmarks.scale.cluster.timeline import START, Timeline, virtual_clocks
from training.config.run_config import RunConfig
from worker.engines import registry
from worker.queue import reaper
from worker.settings import PREFIX, get_settings
from worker.store import database, runs
from worker.store.tables import Run, Status
from worker.supervision import holders

_MOST_DAYS = 5.0  # times `days`: until then all runs have ended
_LOOK_SECONDS = 1800.0  # a round at least this often; others follow each change
_AFTER_LEASE = 5  # rounds after the end of a lease: the reaper waits for three missed renewals


@dataclass(frozen=True)
class Outcome:
    """The runs of a simulation with what their rows say at the end. `round_ms` and `seconds` are of real time, not simulated."""

    accounts: dict[str, Account]
    status: dict[str, Status]
    damage: list[str]
    node_failures: int
    node_days: float
    rounds: int
    round_ms: float
    calls: dict[str, int]
    seconds: float


class Simulation:
    """One simulated cluster with its installation."""

    def __init__(self, parameters: Parameters, timeline: Timeline) -> None:
        self._parameters, self._timeline = parameters, timeline
        self._chance = random.Random(parameters.seed)
        self._controller = Controller(timeline, parameters.nodes, parameters.detection_seconds)
        self._controller.inside = self
        self.slurm = StandIn(self._controller)
        self.accounts: dict[str, Account] = {}
        self._kinds: dict[str, RunClass] = {}
        self._shared = Shared(parameters, self._controller, self.accounts, self._chance, self._wake)
        self._inside: dict[int, Supervisor] = {}
        self._due: set[float] = set()
        self._writes = 0
        self.node_failures = 0
        self._round_seconds: list[float] = []
        event.listen(database.engine(), "after_cursor_execute", self._executed)

    def run(self) -> None:
        """Queues runs, and lets time pass until all have ended."""
        for kind in self._parameters.classes:
            for _ in range(kind.count):
                self._timeline.after(len(self.accounts) + 1, lambda kind=kind: self._queue(kind))  # type: ignore[misc]
        for node in range(1, self._parameters.nodes + 1):
            self._next_failure(node)
        self._look()
        self._timeline.run(self._all_ended, START + _MOST_DAYS * max(self._parameters.days, 1) * DAY)

    def job_started(self, job: SimulatedJob) -> None:
        run_id = job.script.split()[-2]
        self._inside[job.number] = Supervisor(self._shared, job, run_id)
        self._wake(self._timeline.now)

    def job_killed(self, job: SimulatedJob) -> None:
        self._inside[job.number].killed()
        self._wake(self._timeline.now)

    def _queue(self, kind: RunClass) -> None:
        steps = max(1, int(kind.days * DAY / self._parameters.step_seconds * self._chance.uniform(0.8, 1.2)))
        values = {
            "model": "m",
            "data": "d",
            "strategy": "fsdp",
            "num_machines": kind.nodes,
            "num_processes": 8 * kind.nodes,
        }
        if kind.nodes == 1:
            values |= {"num_processes": 8}
        with database.write() as session:
            config = RunConfig.model_validate(values | {"max_steps": steps, "save_steps": self._parameters.save_steps})
            run_id = runs.create(session=session, config=config, dataset_id=None).id
        self.accounts[run_id] = Account(kind.nodes, kind.days, steps, self._timeline.now)
        self._kinds[run_id] = kind
        self._wake(self._timeline.now)

    def _next_failure(self, node: int) -> None:
        if self._parameters.failures:
            seconds = self._chance.expovariate(self._parameters.failures_a_second)
            self._timeline.after(seconds, lambda: self._node_fails(node))

    def _node_fails(self, node: int) -> None:
        """The node fails; if a job is on it, silently or with an error of a rank."""
        self.node_failures += 1
        job = self._controller.job_on(node)
        if self._chance.random() < self._parameters.silent:
            self._controller.fall_silent(node)
            if job is not None:
                self._inside[job.number].node_falls_silent(node)
        else:
            self._controller.drain(node)
            if job is not None:
                self._inside[job.number].rank_crashes()
        self._timeline.after(
            self._parameters.detection_seconds + self._chance.expovariate(1 / self._parameters.repair_seconds),
            lambda: self._repaired(node),
        )

    def _repaired(self, node: int) -> None:
        self._controller.repair(node)
        self._next_failure(node)

    def _wake(self, moment: float) -> None:
        """A round at the next of the worker's times after `moment`, and some more if it is the end of a lease."""
        ahead = moment > self._timeline.now
        first = (moment - START) // reaper.ROUND_SECONDS + 1
        for number in range(_AFTER_LEASE if ahead else 1):
            due = START + (first + number) * reaper.ROUND_SECONDS
            if due not in self._due:
                self._due.add(due)
                self._timeline.at(due, self._round)

    def _look(self) -> None:
        self._wake(self._timeline.now)
        self._timeline.after(_LOOK_SECONDS, self._look)

    def _round(self) -> None:
        """The worker's round. One in which something changed is followed by another; in between nothing would change."""
        self._due.discard(self._timeline.now)
        before, began = self._writes, time.perf_counter()
        reaper.run_round()
        self._round_seconds.append(time.perf_counter() - began)
        if self._writes > before:
            self._wake(self._timeline.now)
        self._queue_successors()

    def _queue_successors(self) -> None:
        with database.read() as session:
            unfinished = (Status.QUEUED, Status.RUNNING)
            open_runs = set(session.exec(select(Run.id).where(col(Run.status).in_(unfinished))))
        for run_id in [run_id for run_id in self._kinds if run_id not in open_runs]:
            kind = self._kinds.pop(run_id)
            if self._timeline.now < START + self._parameters.days * DAY:
                self._queue(kind)

    def _all_ended(self) -> bool:
        return not self._kinds and self._timeline.now > START + len(self._parameters.classes)

    def _executed(self, _connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        # What a statement with RETURNING has changed is not counted before its rows are read.
        changed = cursor.rowcount > 0 or " RETURNING " in statement
        if changed and statement.startswith(("INSERT", "UPDATE", "DELETE")):
            self._writes += 1

    def outcome(self, seconds: float) -> Outcome:
        """What the rows say, compared with what was queued."""
        status, damage = {}, []
        for run_id, account in self.accounts.items():
            with database.read() as session:
                run = session.get(Run, run_id)
                if run is None:
                    damage.append(f"{run_id}: the row is missing")
                    continue
                numbers = [attempt.number for attempt in runs.attempts(session=session, run_id=run_id)]
            status[run_id] = run.status
            found = list(account.damage)
            if run.status is Status.FINISHED and (run.step, account.saved) != (account.total_steps,) * 2:
                found.append(f"finished at step {run.step} of {account.total_steps}")
            if numbers != list(range(1, run.attempt + 1)):
                found.append(f"attempts {numbers}")
            damage += [f"{run_id}: {one}" for one in found]
        node_days = (self._timeline.now - START) / DAY * self._parameters.nodes
        rounds, middle = len(self._round_seconds), statistics.median(self._round_seconds) * 1000
        calls = dict(self.slurm.calls)
        return Outcome(self.accounts, status, damage, self.node_failures, node_days, rounds, middle, calls, seconds)


def simulate(parameters: Parameters, *, as_programs: bool = False) -> Outcome:
    """Simulates a cluster with an installation in a temporary folder, on SQLite.

    Slurm's commands are answered inside this process; with `as_programs` they are programs that the engine starts.
    """
    began = time.perf_counter()
    timeline = Timeline()
    with _installation(parameters), virtual_clocks(timeline):
        database.migrate()
        simulation = Simulation(parameters, timeline)
        commands = programs.installed if as_programs else programs.inside
        with commands(simulation.slurm):
            simulation.run()
        return simulation.outcome(time.perf_counter() - began)


@contextmanager
def _installation(parameters: Parameters) -> Iterator[None]:
    """The environment of an installation whose engine is Slurm, with an engine and a reaper that know nothing yet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lathe-cluster-"))
        settings = {
            "DATA_DIR": str(Path(folder) / "data"), "ENGINES": "slurm", "DEVICES": "cpu",
            "LEASE_SECONDS": str(parameters.lease_seconds), "MAX_ATTEMPTS": str(parameters.max_attempts),
        }  # fmt: skip
        variables = kept | {PREFIX + name: value for name, value in settings.items()}
        stack.enter_context(mock.patch.dict(os.environ, variables, clear=True))
        stack.callback(registry.engine.cache_clear)
        stack.enter_context(mock.patch.dict(holders._silences, clear=True))
        stack.callback(get_settings.cache_clear)
        stack.callback(database.dispose)
        get_settings.cache_clear()
        registry.engine.cache_clear()
        yield

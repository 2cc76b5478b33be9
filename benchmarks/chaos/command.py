"""Injects random faults into a whole installation and checks that nothing is lost: kill, freeze, empty queue, repeated messages.

    python -m benchmarks.chaos [--minutes 10] [--faults N] [--seed N] [--database postgresql] [--broker redis] [--json]

The web server, the queue server and three workers with one device each run in a temporary folder. Most runs train with light
ranks (benchmarks/chaos/ranks.py), which write real records and checkpoints; one run at a time trains a real model: by sft, grpo
and distill in turn. At the end every step of every run must be stored once, with the same values and samples as without faults.
Exits with 1 if anything is lost, doubled or left over. The same seed produces the same faults in the same order.
"""

import argparse
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlmodel import col, select

from benchmarks.chaos.faults import Fault, Injector, plan
from benchmarks.chaos.findings import Curves, Findings, attempts, check_jobs, check_leftovers, check_runs, curves
from benchmarks.chaos.installation import Installation, installation
from benchmarks.chaos.supervisor import LIGHT, REAL
from worker.store import database
from worker.store.tables import Run, Status

STARTER = Path(__file__).parents[2] / "static" / "starter"
DATA = STARTER / "heldout.jsonl"
LOOK_SECONDS = 0.2
VICTIM_SECONDS = 30.0  # how long a fault waits for a target
SETTLE_SECONDS = 300.0  # for the runs that are active at the last fault
REAL_RUN = {"max_steps": 40, "save_steps": 5, "eval_split": 0, "max_length": 64, "micro_batch_size": 2, "seed": 1}
_SAMPLED = {"max_completion_length": 12, "max_length": 256, "micro_batch_size": 8, "learning_rate": 0.001}
REAL_TASKS: dict[str, dict[str, Any]] = {
    "sft": {},
    "grpo": _SAMPLED | {"rewards": "city", "num_generations": 4, "num_iterations": 2, "baseline_prompts": 4},
    "distill": _SAMPLED | {"max_steps": 20},  # the teacher is the first run
}
_ENDING = (signal.SIGINT, signal.SIGTERM)
_UNENDED = (Status.QUEUED, Status.RUNNING)


def main() -> int:
    arguments = _arguments()
    for number in _ENDING:
        signal.signal(number, _end)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    kinds = arguments.database, arguments.broker, arguments.workers
    with installation(*kinds, engine=arguments.engine, keep=arguments.keep) as running:
        chaos = Chaos(running, seed, real=not arguments.light)
        try:
            report = chaos.run(arguments.minutes * 60, arguments.faults, arguments.pause)
        finally:
            chaos.injector.thaw(everything=True)  # a frozen process does not handle signals
        report |= {"database": arguments.database, "broker": arguments.broker, "engine": arguments.engine}
    print(json.dumps(report) if arguments.json else _in_words(report))
    return 0 if report["clean"] else 1


def _end(number: int, _: object) -> None:
    """Exits, which ends all started processes; ignores a second Ctrl-C meanwhile."""
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


@dataclass
class Chaos:
    """One session of faults against one installation."""

    installation: Installation
    seed: int
    real: bool
    injector: Injector = field(init=False)
    accepted: set[str] = field(default_factory=set)
    _submitted: int = 0
    _missed: int = 0
    _data: str = str(DATA)
    _undisturbed: dict[str, Curves] = field(default_factory=dict)
    _teacher: str = ""

    def __post_init__(self) -> None:
        self.injector = Injector(self.installation)
        self._chance = random.Random(self.seed + 1)
        self._tasks = itertools.cycle(REAL_TASKS)

    def run(self, seconds: float, faults: int | None, mean_pause: float) -> dict[str, Any]:
        """Injects faults for `seconds` or until `faults`, lets the runs finish, stops everything and returns the findings."""
        if self.real:
            for task in REAL_TASKS:
                self._train_undisturbed(task)
        began = time.monotonic()
        for fault in plan(self.seed, mean_pause, slurm=self.installation.cluster is not None):
            over = time.monotonic() - began > seconds if faults is None else self._tried >= faults
            if over:
                break
            self._pass(fault.pause)
            self._make(fault, began)
        seconds_taken = time.monotonic() - began
        self._settle()
        self.installation.stop()
        findings = Findings()
        settings = self.installation.settings
        check_leftovers(settings, self.installation.processes, findings)
        check_jobs(self.installation.cluster, findings)
        check_runs(settings.runs_dir, self.accepted, self._undisturbed, findings)
        return self._report(findings, seconds_taken)

    @property
    def _tried(self) -> int:
        return sum(self.injector.made.values()) + self._missed

    def _train_undisturbed(self, task: str) -> None:
        """Keeps the curves of a real training run without faults; the first run teaches those that distill."""
        run_id = ""
        while not run_id:
            run_id = self._submit(f"{REAL}-{task}") or ""
        while self._under_way():
            self._wait(LOOK_SECONDS)
        if self._statuses()[Status.FAILED]:
            raise SystemExit(f"Run {run_id} failed before the first fault.")
        self._undisturbed[task] = curves(run_id)
        self._teacher = self._teacher or run_id

    def _make(self, fault: Fault, began: float) -> None:
        """Injects the fault as soon as it has a target."""
        deadline = time.monotonic() + VICTIM_SECONDS
        while not (done := self.injector.make(fault)) and time.monotonic() < deadline:
            self._pass(LOOK_SECONDS)
        self._missed += not done
        line = f"{time.monotonic() - began:7.1f} s  {fault.kind}" + (f" {fault.seconds:.1f} s" if fault.seconds else "")
        print(line if done else f"{line}: no target", file=sys.stderr, flush=True)

    def _pass(self, seconds: float) -> None:
        """Waits; meanwhile restarts services, thaws frozen processes and submits new runs."""
        deadline = time.monotonic() + seconds
        while True:
            self._top_up()
            self._wait(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                return

    def _wait(self, seconds: float) -> None:
        self.installation.keep_running()
        self.injector.thaw()
        time.sleep(seconds)

    def _top_up(self) -> None:
        """Submits a run if a worker has none, no run is queued, or no real training runs."""
        under_way = self._under_way()
        if self.real and not any(name.startswith(REAL) for name in under_way):
            self._submit(f"{REAL}-{next(self._tasks)}")
        elif len(under_way) <= len(self.installation.workers):
            self._submit(LIGHT)

    def _submit(self, kind: str) -> str | None:
        self._submitted += 1
        number, chance = self._submitted, self._chance
        longest = chance.choice((200, 1000))  # 1,000 take three leases
        steps = {"max_steps": chance.randint(40, longest), "save_steps": chance.randint(5, 30)}
        ranks = {"num_processes": 2, "strategy": "ddp"} if number % 2 else {}
        light = {"seed": number} | steps | ranks | self._machines(number)
        config: dict[str, Any] = {"name": f"{kind}-{number}", "model": str(STARTER), "data": self._data}
        config |= light if kind == LIGHT else self._real_run(kind.removeprefix(f"{REAL}-"))
        run_id = self.installation.submit(config)
        if run_id:
            self.accepted.add(run_id)
            with database.read() as session:
                self._data = session.get_one(Run, run_id).config[
                    "data"
                ]  # the stored data set, so that it is not imported again
        return run_id

    def _real_run(self, task: str) -> dict[str, Any]:
        code = {"reward_code": (STARTER / "rewards.py").read_text()} if task == "grpo" else {}
        teacher = {"teacher": self._teacher} if task == "distill" else {}
        return REAL_RUN | {"task": task} | REAL_TASKS[task] | code | teacher

    def _machines(self, number: int) -> dict[str, Any]:
        """Spreads every second of the runs with two ranks over two nodes, if there are nodes."""
        return {"num_machines": 2} if self.installation.cluster is not None and number % 4 == 1 else {}

    def _under_way(self) -> list[str]:
        with database.read() as session:
            return list(session.exec(select(Run.name).where(col(Run.status).in_(_UNENDED))))

    def _statuses(self) -> Counter[str]:
        with database.read() as session:
            return Counter(session.exec(select(Run.status)))

    def _settle(self) -> None:
        """Thaws all processes and waits until every run has finished."""
        self.injector.thaw(everything=True)
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._under_way() and time.monotonic() < deadline:
            self._wait(LOOK_SECONDS)

    def _report(self, findings: Findings, seconds: float) -> dict[str, Any]:
        ended = attempts()
        return {
            "seed": self.seed,
            "minutes": round(seconds / 60, 1),
            "runs": sum(self._statuses().values()),
            "attempts": sum(ended.values()),
            "attempts_ended": ended,
            "faults": sum(self.injector.made.values()),
            "faults_by_kind": dict(sorted(self.injector.made.items())),
            "faults_of_real_runs": self.injector.of_real_runs,
            "faults_without_victim": self._missed,
            "lost": len(findings.lost),
            "doubled": len(findings.doubled),
            "left_over": len(findings.left_over),
            "found": [*findings.lost, *findings.doubled, *findings.left_over],
            "effective_training_percent": findings.effective_percent,
            "clean": findings.clean,
        }


def _in_words(report: dict[str, Any]) -> str:
    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{number} {name}" for name, number in counts.items())

    lines = [
        f"engine {report['engine']}, {report['database']} and {report['broker']}, seed {report['seed']}, "
        f"{report['minutes']} minutes of faults",
        f"runs        {report['runs']}",
        f"attempts    {report['attempts']}: {listed(report['attempts_ended'])}",
        f"faults      {report['faults']}, {report['faults_of_real_runs']} of them in real training runs",
        f"            {listed(report['faults_by_kind'])}",
        f"lost        {report['lost']}",
        f"doubled     {report['doubled']}",
        f"left over   {report['left_over']}",
        f"effective training time {report['effective_training_percent']}%",
    ]
    return "\n".join([*lines, *(f"  {sentence}" for sentence in report["found"])])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="duration of the faults (default: %(default)s)")
    parser.add_argument("--faults", type=int, help="number of faults, instead of a duration")
    parser.add_argument("--seed", type=int, help="seed of the faults; default: random, and printed")
    parser.add_argument(
        "--engine", choices=["local", "slurm"], default="local", help="slurm: a cluster of two virtual nodes"
    )
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--broker", choices=["valkey", "redis"], default="valkey")
    parser.add_argument(
        "--workers", type=int, default=3, help="number of workers, with one device each (default: %(default)s)"
    )
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between faults (default: %(default)s)")
    parser.add_argument("--light", action="store_true", help="use only light ranks, without real training")
    parser.add_argument("--keep", action="store_true", help="keep the installation's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()

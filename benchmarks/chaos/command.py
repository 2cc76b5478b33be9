"""Injects random faults into a whole installation and checks that nothing is lost: kill, freeze, slow disk, load, empty queue.

    python -m benchmarks.chaos [--minutes 10] [--faults N] [--seed N] [--database postgresql] [--broker redis] [--load 8] [--json]

The web server, the queue server and three workers with one device each run in a temporary folder. Most runs train the starter model
on two ranks (DDP, ZeRO-3, FSDP, and by rewards), verify and merge it and push it to a local hub; others train on one rank, or with
light ranks (benchmarks/chaos/ranks.py), which write real records and checkpoints without torch. Results are evaluated, built and
served. Most faults wait until a run has taken its last step, or enters a phase that was struck least. At the end every step of
every run must be stored once, with the same values, samples and weights as without faults. Exits with 1 after any damage. The same
seed plans the same faults in the same order.
"""

import argparse
import itertools
import json
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from sqlmodel import col, select

from benchmarks.chaos import faults, phases, report
from benchmarks.chaos.faults import plan
from benchmarks.chaos.findings import (
    Findings,
    check_causes,
    check_jobs,
    check_leftovers,
    check_runs,
    check_uploads,
    check_work,
)
from benchmarks.chaos.injector import Injector, Strike
from benchmarks.chaos.installation import Installation, installation
from benchmarks.chaos.kinds import DISTILL, KINDS
from benchmarks.chaos.surroundings import Load
from benchmarks.chaos.workload import Workload, serving, unended_runs, unended_work
from worker.store import database
from worker.store.tables import Run, Status

TICK_SECONDS = 0.02  # some phases of the starter model take a tenth of a second
LOOK_SECONDS = 0.3
STILL_SECONDS = 300.0
"""At the end: how long nothing may change until what is left counts as damage."""
_ENDING = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    arguments = _arguments()
    for number in _ENDING:
        signal.signal(number, _end)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    kinds = arguments.database, arguments.broker, arguments.workers
    with installation(*kinds, engine=arguments.engine, keep=arguments.keep) as running:
        chaos = Chaos(running, seed, real=not arguments.light, load=Load(arguments.load))
        try:
            found = chaos.run(arguments.minutes * 60, arguments.faults, arguments.pause)
        finally:
            chaos.end()
        found |= {"database": arguments.database, "broker": arguments.broker, "engine": arguments.engine}
    print(json.dumps(found) if arguments.json else report.in_words(found))
    return 0 if found["clean"] else 1


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
    load: Load
    injector: Injector = field(init=False)
    workload: Workload = field(init=False)
    _undisturbed: dict[str, str] = field(default_factory=dict)
    _most_at_once: int = 0
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self.watches = phases.Watches(self.installation.settings.runs_dir)
        self.injector = Injector(self.installation, self.watches, self.load)
        self.workload = Workload(self.installation, self.seed + 1, real=self.real)

    def run(self, seconds: float, most: int | None, mean_pause: float) -> dict[str, Any]:
        """Injects faults for `seconds` or until `most`, lets the work finish, stops everything and returns the findings."""
        if self.real:
            self._train_undisturbed()
        self.workload.start()
        began = time.monotonic()
        slurm = self.installation.cluster is not None
        planned = plan(self.seed, mean_pause, real=self.real, load=bool(self.load.processes), slurm=slurm)
        for fault in itertools.islice(planned, most):
            self.injector.arm(fault)
            self._pass(fault.pause, began)
            if most is None and time.monotonic() - began > seconds:
                break
        while most is not None and self.injector.armed:
            self._pass(TICK_SECONDS, began)
        taken = time.monotonic() - began
        findings = Findings()
        self._settle(findings)
        self.installation.stop()
        self._check(findings)
        strikes = self.injector.strikes
        return report.document(self.seed, taken, strikes, self.injector.missed, findings, self._most_at_once) | {
            "answers_of_served_models": dict(self.workload.answers.statuses),
            "phases_not_struck": sorted(phases.declared() - {strike.phase for strike in strikes}),
        }

    def end(self) -> None:
        """Ends all that this session does to the machine; a frozen process does not handle signals."""
        self.workload.stop()
        self.injector.restore(everything=True)
        self.load.stop()

    def _train_undisturbed(self) -> None:
        """Keeps a run of every kind that trains a model without faults; the first one teaches those that distill."""
        for kind in KINDS:
            if kind == DISTILL:
                self.workload.teacher = next(iter(self._undisturbed.values()))
                self._wait_for_runs(self.workload.teacher)
            while not (run_id := self.workload.submit(kind)):
                time.sleep(LOOK_SECONDS)
            self._undisturbed[kind] = run_id
        self._wait_for_runs()
        with database.read() as session:
            failed = session.exec(select(Run.name).where(col(Run.status) != Status.FINISHED)).all()
        if failed:
            raise SystemExit(f"Failed before the first fault: {', '.join(failed)}.")

    def _wait_for_runs(self, run_id: str = "") -> None:
        """Waits for the end of all runs, or of one."""
        while run_id in unended_runs() if run_id else unended_runs():
            self._tick()

    def _pass(self, seconds: float, began: float) -> None:
        """Waits; meanwhile injects the faults whose moment comes."""
        deadline = time.monotonic() + seconds
        while True:
            self._tick()
            for strike in self.injector.look():
                _tell(strike, time.monotonic() - began)
            if time.monotonic() >= deadline:
                return

    def _tick(self) -> None:
        """Waits a moment; now and then restarts services that ended and looks which runs are active."""
        time.sleep(TICK_SECONDS)
        self.injector.restore()
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self.installation.keep_running()
            self.watches.refresh()
        self._most_at_once = max(self._most_at_once, len(self.watches.read()))

    def _settle(self, findings: Findings) -> None:
        """Ends all faults, and waits until all work has finished, as long as anything changes."""
        self.injector.restore(everything=True)
        self.workload.stop()
        before, since = "", time.monotonic()
        while (left := _left() or "requests" * self.workload.busy) and time.monotonic() - since < STILL_SECONDS:
            if left != before:
                before, since = left, time.monotonic()
            self._tick()
        if self.real and not left and not self._answers():
            findings.hanging += [f"{row.named}: {row.state.value} {row.reason}" for row in serving()]
            findings.hanging.append("after the faults, no served model answers")

    def _answers(self) -> bool:
        """Whether a served model answers in the end."""
        began, model = time.monotonic(), next(iter(self._undisturbed.values()))
        while not (answered := self.workload.request(model)) and time.monotonic() - began < STILL_SECONDS:
            self._tick()
        return answered

    def _check(self, findings: Findings) -> None:
        settings, answers = self.installation.settings, self.workload.answers
        check_leftovers(settings, self.installation.processes, findings)
        check_jobs(self.installation.cluster, findings)
        check_runs(settings.runs_dir, self.workload.accepted, self._undisturbed, findings)
        check_uploads(settings.runs_dir, self.installation.hub, findings)
        check_work(findings)
        strikes = [strike for strike in self.injector.strikes if strike.fault.action == faults.KILL]
        everything = [strike.at for strike in strikes if strike.fault.target == faults.EVERYTHING]
        check_causes({(strike.run_id, strike.attempt) for strike in strikes}, everything, findings)
        findings.different += answers.different
        findings.hanging += answers.hanging
        findings.misnamed += answers.refused


def _left() -> str:
    """What has not ended, with its progress; empty if everything has."""
    with database.read() as session:
        runs = session.exec(select(Run).where(col(Run.status).in_((Status.QUEUED, Status.RUNNING)))).all()
    told = [f"{run.named} {run.status} {run.attempt} {run.event_offset}" for run in runs]
    return " ".join(told + [f"{row.named} {row.status} {row.attempt} {row.phase} {row.done}" for row in unended_work()])


def _tell(strike: Strike, at: float) -> None:
    fault = strike.fault
    lasting = f" {fault.seconds:.1f} s" if fault.seconds else ""
    where = (
        f", {strike.kind} {strike.run_id} on {strike.ranks}, attempt {strike.attempt}, {strike.phase}"
        if strike.run_id
        else ""
    )
    end = " after the last step" if strike.late else ""
    print(f"{at:7.1f} s  {fault.kind}{lasting}{where}{end}", file=sys.stderr, flush=True)


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
    parser.add_argument("--pause", type=float, default=5.0, help="mean seconds between faults (default: %(default)s)")
    parser.add_argument(
        "--load", type=int, default=0, help="processes that use the processor, now and then (default: %(default)s)"
    )
    parser.add_argument("--light", action="store_true", help="use only light ranks, without real training")
    parser.add_argument("--keep", action="store_true", help="keep the installation's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()

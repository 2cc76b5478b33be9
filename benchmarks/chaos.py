"""Random faults against a whole installation: kills, freezes, an emptied queue, repeated messages. Nothing may be lost.

    python -m benchmarks.chaos [--minutes 10] [--faults N] [--seed N] [--database postgresql] [--broker redis] [--json]

Web server, queue server and three workers, each with a device of its own, run in a temporary folder. Most runs train with
light ranks (benchmarks/chaos_ranks.py), which keep the real records and checkpoints; one at a time really trains. In the
end every step of every run must be stored once, with the loss that it has without faults. Exit code 1 where something is
lost, doubled or left over. The same seed makes the same faults in the same order.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlmodel import col, select

from benchmarks.chaos_faults import Fault, Injector, plan
from benchmarks.chaos_findings import Findings, Losses, attempts, look_at_runs, look_for_rest, losses
from benchmarks.chaos_installation import Installation, installation
from benchmarks.chaos_supervisor import LIGHT, REAL
from worker import database
from worker.models import Run, Status

STARTER = Path(__file__).parents[1] / "static" / "starter"
DATA = STARTER / "heldout.jsonl"
LOOK_SECONDS = 0.2
VICTIM_SECONDS = 30.0  # how long a fault waits for something that it can strike
SETTLE_SECONDS = 300.0  # for the runs that are under way when the last fault was made
REAL_RUN = {"max_steps": 40, "save_steps": 5, "eval_split": 0, "max_length": 64, "micro_batch_size": 2, "seed": 1}
_ENDING = (signal.SIGINT, signal.SIGTERM)
_UNENDED = (Status.QUEUED, Status.RUNNING)


def main() -> int:
    arguments = _arguments()
    for number in _ENDING:
        signal.signal(number, _end)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    with installation(arguments.database, arguments.broker, arguments.workers, keep=arguments.keep) as made:
        chaos = Chaos(made, seed, real=not arguments.light)
        try:
            report = chaos.run(arguments.minutes * 60, arguments.faults, arguments.pause)
        finally:
            chaos.injector.thaw(everything=True)  # what is frozen cannot be told to stop
        report |= {"database": arguments.database, "broker": arguments.broker}
    print(json.dumps(report) if arguments.json else _in_words(report))
    return 0 if report["clean"] else 1


def _end(number: int, _: object) -> None:
    """Ends what was started, and itself; another Ctrl-C does not keep it from that."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
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
    _undisturbed: Losses = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.injector = Injector(self.installation)
        self._chance = random.Random(self.seed + 1)

    def run(self, seconds: float, faults: int | None, mean_pause: float) -> dict[str, Any]:
        """Makes faults for `seconds`, or so many `faults`, lets the runs finish, stops everything and says what was found."""
        if self.real:
            self._undisturbed = self._train_undisturbed()
        began = time.monotonic()
        for fault in plan(self.seed, mean_pause):
            over = time.monotonic() - began > seconds if faults is None else self._tried >= faults
            if over:
                break
            self._pass(fault.pause)
            self._make(fault, began)
        took = time.monotonic() - began
        self._settle()
        self.installation.stop()
        found = Findings()
        settings = self.installation.settings
        look_for_rest(settings, self.installation.processes, found)
        look_at_runs(settings.runs_dir, self.accepted, self._undisturbed, found)
        return self._report(found, took)

    @property
    def _tried(self) -> int:
        return sum(self.injector.made.values()) + self._missed

    def _train_undisturbed(self) -> Losses:
        """The losses of a run that really trains, with nothing done to it."""
        run_id = ""
        while not run_id:
            run_id = self._submit(REAL) or ""
        while not self._statuses()[Status.FINISHED]:
            self._wait(LOOK_SECONDS)
            if self._statuses()[Status.FAILED]:
                raise SystemExit(f"Run {run_id} failed before any fault was made.")
        return losses(run_id)

    def _make(self, fault: Fault, began: float) -> None:
        """Makes the fault as soon as it can strike something."""
        deadline = time.monotonic() + VICTIM_SECONDS
        while not (done := self.injector.make(fault)) and time.monotonic() < deadline:
            self._pass(LOOK_SECONDS)
        self._missed += not done
        told = f"{time.monotonic() - began:7.1f} s  {fault.kind}" + (f" {fault.seconds:.1f} s" if fault.seconds else "")
        print(told if done else f"{told}: nothing to strike", file=sys.stderr, flush=True)

    def _pass(self, seconds: float) -> None:
        """Lets time pass, during which services are started again, the frozen go on and new runs are submitted."""
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
        """Sees to it that every worker has a run, one waits, and one really trains."""
        under_way = self._under_way()
        if self.real and not any(name.startswith(REAL) for name in under_way):
            self._submit(REAL)
        elif len(under_way) <= len(self.installation.workers):
            self._submit(LIGHT)

    def _submit(self, kind: str) -> str | None:
        self._submitted += 1
        number, chance = self._submitted, self._chance
        longest = chance.choice((200, 1000))  # 1,000 take three leases
        steps = {"max_steps": chance.randint(40, longest), "save_steps": chance.randint(5, 30)}
        ranks = {"num_processes": 2, "strategy": "ddp"} if number % 2 else {}
        light = {"seed": number} | steps | ranks
        config: dict[str, Any] = {"name": f"{kind}-{number}", "model": str(STARTER), "data": self._data}
        config |= light if kind == LIGHT else REAL_RUN
        run_id = self.installation.submit(config)
        if run_id:
            self.accepted.add(run_id)
            with database.read() as session:
                self._data = session.get_one(Run, run_id).config["data"]  # kept by now: it is not read anew
        return run_id

    def _under_way(self) -> list[str]:
        with database.read() as session:
            return list(session.exec(select(Run.name).where(col(Run.status).in_(_UNENDED))))

    def _statuses(self) -> Counter[str]:
        with database.read() as session:
            return Counter(session.exec(select(Run.status)))

    def _settle(self) -> None:
        """No more faults: lets every run finish."""
        self.injector.thaw(everything=True)
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._under_way() and time.monotonic() < deadline:
            self._wait(LOOK_SECONDS)

    def _report(self, found: Findings, seconds: float) -> dict[str, Any]:
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
            "lost": len(found.lost),
            "doubled": len(found.doubled),
            "left_over": len(found.left_over),
            "found": [*found.lost, *found.doubled, *found.left_over],
            "effective_training_percent": found.effective_percent,
            "clean": found.clean,
        }


def _in_words(report: dict[str, Any]) -> str:
    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{number} {name}" for name, number in counts.items())

    lines = [
        f"{report['database']} and {report['broker']}, seed {report['seed']}, {report['minutes']} minutes of faults",
        f"runs        {report['runs']}",
        f"attempts    {report['attempts']}: {listed(report['attempts_ended'])}",
        f"faults      {report['faults']}, {report['faults_of_real_runs']} of them in runs that really train",
        f"            {listed(report['faults_by_kind'])}",
        f"lost        {report['lost']}",
        f"doubled     {report['doubled']}",
        f"left over   {report['left_over']}",
        f"effective training time {report['effective_training_percent']}%",
    ]
    return "\n".join([*lines, *(f"  {sentence}" for sentence in report["found"])])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long faults are made (default: %(default)s)")
    parser.add_argument("--faults", type=int, help="how many faults are made, whatever time that takes")
    parser.add_argument("--seed", type=int, help="of the faults; chosen and printed where it is left out")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--broker", choices=["valkey", "redis"], default="valkey")
    parser.add_argument("--workers", type=int, default=3, help="each with a device of its own (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between faults (default: %(default)s)")
    parser.add_argument("--light", action="store_true", help="light ranks alone: nothing really trains")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the installation")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    sys.exit(main())

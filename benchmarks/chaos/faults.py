"""The faults of benchmarks.chaos, planned from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.chaos.installation import LEASE_SECONDS
from benchmarks.chaos.phases import END
from worker.supervision.training_process import Graces

KILL, FREEZE, EMPTY_QUEUE, REPEAT_MESSAGES = "kill", "freeze", "empty queue", "repeat messages"
SLOW_DISK, LOAD = "slow disk", "load"
RANK, LAUNCHER, SUPERVISOR, REWARDS = "rank", "launcher", "supervisor", "reward process"
WEB, BROKER, WORKER, EVERYTHING = "web", "broker", "worker", "everything"
EVALUATION, BUILD, SERVED = "evaluation", "build", "served model"
OF_A_RUN = (RANK, LAUNCHER, SUPERVISOR, REWARDS)
SERVICES = (WEB, BROKER, WORKER, EVERYTHING)
OF_A_RESULT = (EVALUATION, BUILD, SERVED)
"""Work on the result of a run: its supervisor, or a process of it."""
CONTROLLER, NODE, TIME_LIMIT, REQUEUE = "slurmctld", "slurmd", "time limit", "requeue"
OF_SLURM = (CONTROLLER, NODE, TIME_LIMIT, REQUEUE)
"""Daemons that are killed; the signal before the time limit; `scontrol requeue`."""

NOW, RAREST = "now", "rarest phase"
TWO, ONE, LIGHT_RANKS = "two ranks", "one rank", "light ranks"

SLURM_SHARE = 0.3
REPEATS = 20
_LONGEST_GRACE = max(*vars(Graces()).values(), LEASE_SECONDS)
_FREEZES = ((0.2, 0.5 * LEASE_SECONDS), (LEASE_SECONDS, 2.5 * LEASE_SECONDS), (_LONGEST_GRACE, 1.3 * _LONGEST_GRACE))
_FREEZE_WEIGHTS = (3, 5, 2)
"""Shorter than a lease, longer than a lease, longer than any grace of the supervisor."""
_SLOW_SECONDS = (0.3, 3.0)


@dataclass(frozen=True)
class Fault:
    """An action on a target.

    `subject` are the runs that it may strike, at `moment`: NOW, END, or RAREST: the start of the phase that was struck least so
    far. `seconds` is the duration of a freeze, a load or a slow disk, `delay` what the disk adds to each fsync; `pick` (0 to 1)
    selects one of several targets, `point` (0 to 1) the time within the moment; `pause` is the time before the next fault.
    """

    action: str = KILL
    target: str = ""
    subject: str = ""
    moment: str = NOW
    seconds: float = 0.0
    delay: float = 0.0
    pick: float = 0.0
    point: float = 0.0
    pause: float = 0.0

    @property
    def kind(self) -> str:
        return f"{self.action} {self.target}".strip()

    @property
    def of_a_run(self) -> bool:
        """Whether it strikes one run."""
        return bool(self.subject)


def plan(
    seed: int, mean_pause: float, *, real: bool = True, load: bool = False, slurm: bool = False
) -> Iterator[Fault]:
    """Yields an endless sequence of faults that depends only on the arguments; `slurm` adds those of a cluster."""
    chance = random.Random(seed)
    while True:
        common = Fault(pick=chance.random(), point=chance.random(), pause=chance.uniform(0, 2 * mean_pause))
        if slurm and chance.random() < SLURM_SHARE:
            yield replace(common, action=KILL, target=chance.choice(OF_SLURM))
        elif chance.random() < (0.75 if real else 0.6):
            yield _of_run(chance, common, real)
        else:
            yield _of_installation(chance, common, real, load)


def _of_run(chance: random.Random, common: Fault, real: bool) -> Fault:
    subject = chance.choices((TWO, ONE, LIGHT_RANKS), (8, 1, 1))[0] if real else LIGHT_RANKS
    moment = chance.choices((END, RAREST, NOW), (6, 3, 2))[0]
    moment = NOW if subject == LIGHT_RANKS else moment  # light ranks end within milliseconds of their last step
    action = chance.choices((KILL, FREEZE, SLOW_DISK), (6, 5, 1))[0]
    if action == SLOW_DISK:
        delay, seconds = chance.uniform(*_SLOW_SECONDS), chance.uniform(5, 30)
        return replace(common, action=action, subject=subject, moment=moment, seconds=seconds, delay=delay)
    target = chance.choices(OF_A_RUN, (6, 2, 3, 2 if real and action == KILL else 0))[0]
    if target == REWARDS:
        subject, moment = chance.choice((TWO, ONE)), NOW  # it has no phases; it lives while samples are scored
    seconds = _frozen(chance, action)
    return replace(common, action=action, target=target, subject=subject, moment=moment, seconds=seconds)


def _of_installation(chance: random.Random, common: Fault, real: bool, load: bool) -> Fault:
    targets, weights = (*SERVICES, *OF_A_RESULT), (2, 3, 5, 1, *(4 if real else 0 for _ in OF_A_RESULT))
    action = chance.choices((KILL, FREEZE, EMPTY_QUEUE, REPEAT_MESSAGES, LOAD), (12, 8, 1, 1, 3 if load else 0))[0]
    target = chance.choices(targets, weights)[0] if action in (KILL, FREEZE) else ""
    seconds = chance.uniform(20, 60) if action == LOAD else _frozen(chance, action)
    return replace(common, action=action, target=target, seconds=seconds)


def _frozen(chance: random.Random, action: str) -> float:
    seconds = chance.uniform(*chance.choices(_FREEZES, _FREEZE_WEIGHTS)[0])
    return seconds if action == FREEZE else 0.0

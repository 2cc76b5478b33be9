"""What every engine does: it places waiting runs on machines and says what became of them.

With every engine, the database holds the state of a run. The process that starts a run claims it there (worker/store/claims.py);
an engine starts that process on a machine, and ends what is left of it. Attempts, leases, checkpoints, resume and diagnosis do not
depend on it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from training.config.choices import EngineName
from worker.store.tables import Run
from worker.supervision.holders import Holder


@dataclass(frozen=True)
class Abilities:
    """What an engine can do, besides one run on one machine: rules and pages ask here.

    `several_machines`: one run on several. `queues_itself`: waiting runs have a place in its queue, and a reason to wait.
    `preempts`: it may stop a run for another one, and continue it later.
    """

    several_machines: bool = False
    queues_itself: bool = False
    preempts: bool = False


@dataclass(frozen=True)
class Pool:
    """Machines of one kind that runs can ask for: a partition. `states` counts its machines by state in the engine's words."""

    name: str
    machines: int
    states: dict[str, int]
    gpus: int = 0
    time_limit: str = ""
    is_default: bool = False


@dataclass(frozen=True)
class Capacity:
    """`pools` of an engine, and how many of our jobs wait and run; `problem`: why it does not answer, or empty."""

    engine: EngineName
    pools: list[Pool] = field(default_factory=list)
    waiting: int = 0
    running: int = 0
    problem: str = ""


class Engine(Protocol):
    """Places runs on machines. No method raises because the engine is unreachable; the next round tries again."""

    name: EngineName
    abilities: Abilities

    def submit_waiting(self) -> list[Run]:
        """Starts waiting runs, or hands them to the engine's own queue; returns those that were started or handed over.

        Submitting twice starts nothing twice.
        """
        ...

    def poll(self, run: Run) -> Holder:
        """What is known of the process that holds the running run."""
        ...

    def cancel(self, run: Run) -> None:
        """Ends what is left of an attempt that no longer holds its run; returns when nothing of it trains, as far as is known."""
        ...

    def logs(self, run: Run) -> list[Path]:
        """The logs of what started and supervised the run, besides the output of the training."""
        ...

    def capacity(self) -> Capacity:
        """The machines that it has."""
        ...

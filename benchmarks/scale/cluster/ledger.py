"""What became of the time of each run: kept apart from the database, to check it."""

from collections import defaultdict
from dataclasses import dataclass, field

CAUSES = ("useful", "checkpoints", "first start", "restart", "replay", "until noticed")
"""Of the time that a run held nodes. `replay` are steps after the last complete checkpoint; `until noticed` is from a failure to
the end of the job."""


@dataclass
class Account:
    """One run: its size, seconds by cause, and what it went through.

    `saved` is the newest complete checkpoint, `training` the number of processes that train it now.
    """

    nodes: int
    days: float
    total_steps: int
    waits_since: float
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    queued: float = 0.0
    requeued: float = 0.0
    failures: int = 0
    jobs: int = 0
    attempts: int = 0
    saved: int = 0
    training: int = 0
    doubled: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def held(self) -> float:
        """Seconds that the run's jobs held nodes."""
        return sum(self.seconds[cause] for cause in CAUSES)

    def job_started(self, now: float) -> bool:
        """Books the time in Slurm's queue; True for the run's first job."""
        waited, self.jobs = now - self.waits_since, self.jobs + 1
        if self.jobs == 1:
            self.queued += waited
        else:
            self.requeued += waited
        return self.jobs == 1

    def begins_training(self, first: int) -> None:
        """Checks that nobody else trains the run, and that it resumes where it must."""
        self.training += 1
        self.attempts += 1
        if self.training > 1:
            self.doubled += 1
            self.damage.append("two jobs trained it at once")
        if first != self.saved:
            self.damage.append(f"resumed from step {first} instead of {self.saved}")

    def ends_training(self, saved: int) -> None:
        self.training -= 1
        self.saved = saved

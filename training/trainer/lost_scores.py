"""The samples of an attempt that have no score although a reward applies to them: counted, said, and a mark on the run."""

from collections.abc import Sequence

from training.run_folder.events import Note
from training.trainer.sample_records import Scored

MOST = 0.01
"""The share of samples without a score up to which a run is not marked."""


class LostScores:
    """Counts the samples of all ranks."""

    def __init__(self) -> None:
        self.samples = self.lost = self.steps = 0

    def add(self, step: int, samples: Sequence[Scored]) -> list[Note]:
        """Counts the samples of a step. Returns a warning if it is the first of which all are lost."""
        lost = sum(one.lost for one in samples)
        self.samples, self.lost = self.samples + len(samples), self.lost + lost
        if not samples or lost < len(samples):
            return []
        self.steps += 1
        message = f"Step {step:,} had no whole scores: a reward failed for each of its {lost:,} samples."
        return [Note(message=message, level="warning")] if self.steps == 1 else []

    @property
    def marks(self) -> bool:
        """True if a run's numbers are not those of its rewards: too many samples, or all of a step, were lost."""
        return self.steps > 0 or self.lost > MOST * self.samples

    def at_end(self) -> list[Note]:
        """What is said at the end; nothing if no sample was lost."""
        if not self.lost:
            return []
        share, steps = (
            self.lost / self.samples,
            f", among them those of {self.steps:,} whole steps" if self.steps else "",
        )
        message = (
            f"{self.lost:,} of {self.samples:,} samples ({share:.1%}) have no score of a reward that failed{steps}."
        )
        return [Note(message=message, level="warning" if self.marks else "info")]

    def summary(self) -> dict[str, dict[str, int]]:
        """The mark for the run's summary; empty without one."""
        counts = {"lost": self.lost, "samples": self.samples, "steps": self.steps}
        return {"lost_scores": counts} if self.marks else {}

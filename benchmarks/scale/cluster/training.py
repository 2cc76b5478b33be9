"""The only part that is a model: how far training has come after some seconds, and which checkpoint is complete then. Pure."""

from dataclasses import dataclass

from benchmarks.scale.cluster.parameters import Parameters


@dataclass(frozen=True)
class Training:
    """Training of an attempt from step `first` to `last`; a checkpoint every `save_steps` steps and at the end."""

    first: int
    last: int
    parameters: Parameters

    @property
    def seconds(self) -> float:
        """Until the last step is trained and its checkpoint complete."""
        steps, of = self.last - self.first, self.parameters
        saves = -(-steps // of.save_steps)
        return steps * of.step_seconds + saves * of.stall_seconds + of.write_seconds

    def step(self, elapsed: float) -> int:
        """The last complete step after `elapsed` seconds."""
        cycles, rest = divmod(elapsed, self._cycle)
        steps = int(cycles) * self.parameters.save_steps
        steps += min(self.parameters.save_steps, int(rest / self.parameters.step_seconds))
        return min(self.last, self.first + steps)

    def saved(self, elapsed: float) -> int:
        """The step of the newest complete checkpoint after `elapsed` seconds; `first` if there is none of this attempt."""
        return self._boundary(elapsed - self.parameters.write_seconds)

    def writing(self, elapsed: float) -> int | None:
        """The step of the checkpoint that is being written after `elapsed` seconds."""
        begun = self._boundary(elapsed + self.parameters.stall_seconds)
        return begun if begun > self.saved(elapsed) else None

    def stalled(self, elapsed: float) -> float:
        """Seconds that checkpoints stopped training in the first `elapsed` seconds."""
        cycles, rest = divmod(elapsed, self._cycle)
        return cycles * self.parameters.stall_seconds + max(0.0, rest - self.parameters.interval)

    @property
    def _cycle(self) -> float:
        return self.parameters.interval + self.parameters.stall_seconds

    def _boundary(self, elapsed: float) -> int:
        return min(self.last, self.first + max(0, int(elapsed // self._cycle)) * self.parameters.save_steps)

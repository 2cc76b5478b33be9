"""The machine that a run trains on: what the rules need to know about it."""

from dataclasses import dataclass, field
from typing import Literal

from training.config.choices import Precision


@dataclass(frozen=True)
class Machine:
    """`devices` is the number of GPUs. Without GPUs it is one CPU device, whose `cores` (0 if unknown) the processes share."""

    kind: Literal["cuda", "cpu"] = "cpu"
    devices: int = 1
    names: list[str] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    bf16: bool = True
    cores: int = 0
    most_machines: int = 1
    """Machines like this one that the run's engine can give to one run."""

    @property
    def best_precision(self) -> Precision:
        """The precision that `precision: auto` selects on this machine."""
        if self.kind == "cpu":
            return Precision.FP32
        return Precision.BF16 if self.bf16 else Precision.FP16

    def precision_of(self, precision: Precision) -> Precision:
        """The setting `precision`, with the one that auto selects on this machine."""
        return self.best_precision if precision is Precision.AUTO else precision


A_CLUSTER = Machine("cuda", devices=1024, most_machines=1024)
"""Machines of which no more is known here than that they have GPUs."""
A_CPU_CLUSTER = Machine(most_machines=1024)

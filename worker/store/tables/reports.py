"""What the reports of workers hold: the devices of their machine, and what an engine with machines of its own has."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True)
class Device:
    """A device and its state; what cannot be measured is None. `name` is its lease's."""

    name: str
    label: str
    memory_bytes: int
    memory_used_bytes: int | None = None
    temperature_celsius: int | None = None
    utilization: Annotated[float | None, Field(description="a share of 1")] = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    problem: Annotated[str, Field(description="why no run can use it, or empty")] = ""
    others: Annotated[str, Field(description="what uses it although Lathe does not, or empty")] = ""


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

    engine: str
    pools: list[Pool] = field(default_factory=list)
    waiting: int = 0
    running: int = 0
    problem: str = ""

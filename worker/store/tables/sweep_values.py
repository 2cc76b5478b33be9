"""What a sweep's row holds: what was requested, and what was shown before the start."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from training.errors import Problem
from worker.choices import SearchMethod

MOST_RUNS = 200
MOST_SEEDS = 20
MOST_CHARACTERS = 8_000_000
"""Of the settings of a sweep's runs together."""


class ValueRange(BaseModel):
    """Values from `low` to `high`: drawn uniformly (with `log` on a logarithmic scale), in steps of `step` if given."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    low: float
    high: float
    log: bool = False
    step: float | None = Field(default=None, gt=0)


class SweepSpec(BaseModel):
    """A sweep as a user describes it. Immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)

    name: str = Field("", max_length=80, description="Name of the sweep. Default: the names of the settings that vary.")
    config: dict[str, Any] = Field(description="Settings of a run, as in its file.")
    space: dict[str, list[Any] | ValueRange] = Field(
        description="Values of each setting that varies: a list, or a range."
    )
    method: SearchMethod = Field(
        SearchMethod.GRID, description="grid: every combination. random: `trials` draws. halving: the best continue."
    )
    trials: int | None = Field(
        None, ge=1, le=MOST_RUNS, description="Number of configurations to draw (random, halving)."
    )
    seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of the draws.")
    seeds: int = Field(1, ge=1, le=MOST_SEEDS, description="Runs per configuration, each with another seed.")
    metric: str = Field(
        "", max_length=60, description="Metric that decides. Default: eval_loss, without held-out rows loss."
    )
    direction: Literal["minimize", "maximize"] = Field(
        "minimize", description="Whether a lower or a higher value is better."
    )
    reduction_factor: int = Field(3, ge=2, le=16, description="halving: one of so many continues at each rung.")
    min_steps: int = Field(20, ge=1, description="halving: steps before the first decision.")
    include_unfit: bool = Field(False, description="Also start runs whose memory forecast does not fit.")

    @property
    def title(self) -> str:
        """The name; by default "Sweep of learning_rate, lora_r"."""
        return self.name or f"Sweep of {', '.join(self.space)}"[:80]

    @property
    def draws(self) -> bool:
        """True if configurations are drawn, False if all combinations are trained."""
        return self.method is SearchMethod.RANDOM or (self.method is SearchMethod.HALVING and self.trials is not None)

    @property
    def halves(self) -> bool:
        """True if runs pause at rungs and only the best continue."""
        return self.method is SearchMethod.HALVING


class PlannedRun(BaseModel):
    """A run of the plan: whether it starts and fits into memory, its steps and time, and why it does not start."""

    trial: int
    name: str
    changes: dict[str, Any]
    seed: int | None
    starts: bool
    fits: bool | None
    peak_bytes: int | None
    steps: int | None
    seconds: float | None
    reason: str
    problems: list[Problem]


class SweepPlan(BaseModel):
    """A sweep before its start: how many of its runs start, do not fit and are refused, and the steps and time of all."""

    name: str
    method: str
    metric: str
    total: int
    starting: int
    unfit: int
    refused: int
    steps: int | None
    seconds: float | None
    devices: int
    runs: list[PlannedRun]


NO_PLAN = SweepPlan(
    name="", method="", metric="", total=0, starting=0, unfit=0, refused=0, steps=None, seconds=None, devices=0, runs=[]
)
"""In place of a plan that cannot be read."""

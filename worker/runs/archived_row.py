"""The types and bounds of a run's row in an archive: of each value that a list or a page calculates with."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from worker.store.runs import LONGEST_NAME, LONGEST_NOTES, LONGEST_TAG

Time = Annotated[float, Field(ge=0, lt=253_402_300_800)]
"""Seconds since the epoch, to the year 9999."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
Bytes = Annotated[float, Field(ge=0, lt=2**63)]
Values = dict[str, Any]


class _Part(BaseModel):
    """Only checks: the row is stored as it is, with values that have no field here."""

    model_config = ConfigDict(allow_inf_nan=False)


class Summary(_Part):
    """As the training program reports it."""

    memory: dict[str, list[Bytes | None]] | None = None
    answers: dict[str, float | Values | None] | None = None
    strategy: Values | None = None
    classes: list[str] | None = None
    optimizer: str | None = None
    final_loss: float | None = None
    eval_loss: float | None = None
    eval_perplexity: float | None = None
    trainable_parameters: Count | None = None
    total_parameters: Count | None = None
    trainable_percent: float | None = None
    adapter_bytes: Bytes | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    train_seconds: float | None = None
    energy_joules: float | None = None


class Plan(_Part):
    """As the training program reports it (`events.Planned`)."""

    train_rows: Count | None = None
    eval_rows: Count | None = None
    skipped_rows: Count | None = None
    truncated_rows: Count | None = None
    world_size: Count = 1
    trainable_parameters: Count
    total_parameters: Count
    target_modules: list[str] = []
    sets: list[Values] = []
    eval_sets: list[Values] = []


class Forecast(_Part):
    """As `run_forecast.of_run` makes it."""

    allocated_bytes: Bytes
    peak_bytes: Bytes | None = None
    moving_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None
    parts: dict[str, float] | None = None
    roofline: dict[str, float] | None = None


class Failure(_Part):
    """Why a run failed."""

    message: str | None = None
    fix: str | None = None
    step_down: Values | None = None
    diagnosis: Values | None = None


class ArchivedRow(_Part):
    """The columns of a run (`run_archive.RUN_FIELDS`)."""

    name: Annotated[str, Field(max_length=LONGEST_NAME)]
    tags: list[Annotated[str, Field(max_length=LONGEST_TAG)]]
    notes: Annotated[str, Field(max_length=LONGEST_NOTES)]
    fingerprints: dict[str, str]
    created_at: Time
    queued_at: Time
    started_at: Time | None
    finished_at: Time | None
    attempt: Count
    step: Count
    total_steps: Count | None
    peak_bytes: Bytes | None
    seconds_per_step: Annotated[float, Field(ge=0)] | None
    final_loss: float | None
    best_loss: float | None
    plan: Plan | None
    summary: Summary | None
    forecast: Forecast | None
    error: Failure | None

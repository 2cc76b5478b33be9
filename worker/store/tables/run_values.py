"""The types and bounds of what a run's row holds: of each value that a list or a page calculates with.

An archive with other values is refused. A row that has one all the same, from an older version or a damaged disk, is read without it,
so that no list fails because of one row; `damaged` names the columns.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import event, inspect
from sqlalchemy.orm.attributes import set_committed_value

from worker.store.tables.runs import Run

LONGEST_NAME, LONGEST_TAG, LONGEST_NOTES = 200, 40, 20_000

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
    """As `run_forecast.recorded` makes it."""

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


class RunValues(_Part):
    """The columns of a run."""

    name: Annotated[str, Field(max_length=LONGEST_NAME)] = "damaged"
    config: Values = {}
    tags: list[Annotated[str, Field(max_length=LONGEST_TAG)]] = []
    notes: Annotated[str, Field(max_length=LONGEST_NOTES)] = ""
    fingerprints: dict[str, str] = {}
    devices: list[str] = []
    stepped_down: Values = {}
    created_at: Time = 0.0
    queued_at: Time = 0.0
    started_at: Time | None = None
    finished_at: Time | None = None
    archived_at: Time | None = None
    attempt: Count = 0
    step: Count = 0
    total_steps: Count | None = None
    peak_bytes: Bytes | None = None
    seconds_per_step: Annotated[float, Field(ge=0)] | None = None
    final_loss: float | None = None
    best_loss: float | None = None
    plan: Plan | None = None
    summary: Summary | None = None
    forecast: Forecast | None = None
    error: Failure | None = None


def damaged(run: Run) -> list[str]:
    """The columns of the run's row whose values could not be read."""
    return list(inspect(run).info.get(_DAMAGED, ()))


_DAMAGED = "damaged"


@event.listens_for(Run, "load")
@event.listens_for(Run, "refresh")
def _leave_out_damaged(run: Run, *_: object) -> None:
    inspect(run).info.pop(_DAMAGED, None)
    held = {name: value for name, value in run.__dict__.items() if name in RunValues.model_fields}
    try:
        RunValues.model_validate(held)
    except ValidationError as error:
        names = sorted({str(problem["loc"][0]) for problem in error.errors()})
        inspect(run).info[_DAMAGED] = names
        for name in names:
            set_committed_value(run, name, RunValues.model_fields[name].get_default(call_default_factory=True))

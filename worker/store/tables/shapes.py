"""The types and bounds of what JSON columns hold: of each value that a list or a page calculates with.

They only check: a row is stored as it is, with values that have no field here. An archive with other values is refused.
"""

from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Self, Union, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)

from training.config.run_config import RunConfig
from training.scoring.overlap import Overlap
from training.scoring.score_card import ScoreCard
from worker.store.tables.row import first_problem

LONGEST_NAME, LONGEST_TAG, LONGEST_NOTES = 200, 40, 20_000

Time = Annotated[float, Field(ge=0, lt=253_402_300_800)]
"""Seconds since the epoch, to the year 9999."""
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Real = Annotated[float, Field(strict=True)]
Bytes = Annotated[float, Field(strict=True, ge=0, lt=2**63)]
Tag = Annotated[str, Field(max_length=LONGEST_TAG)]
Values = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class RunSummary(_Part):
    """As the training program reports it."""

    memory: dict[str, list[Bytes | None]] | None = None
    answers: dict[str, Real | Values | None] | None = None
    undone: dict[str, str] | None = None
    strategy: Values | None = None
    classes: list[str] | None = None
    optimizer: str | None = None
    final_loss: Real | None = None
    eval_loss: Real | None = None
    eval_perplexity: Real | None = None
    trainable_parameters: Count | None = None
    total_parameters: Count | None = None
    trainable_percent: Real | None = None
    adapter_bytes: Bytes | None = None
    tokens_per_second: Real | None = None
    samples_per_second: Real | None = None
    train_seconds: Real | None = None
    energy_joules: Real | None = None
    lost_scores: dict[str, Count] | None = None


class RunPlan(_Part):
    """As the training program reports it (`events.Planned`)."""

    start_step: Count = 0
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


class RunFailure(_Part):
    """Why a run failed."""

    message: str | None = None
    fix: str | None = None
    phase: str | None = None
    traceback: str | None = None
    step_down: Values | None = None
    diagnosis: Values | None = None


class RunForecast(_Part):
    """As `run_forecast.recorded` makes it."""

    allocated_bytes: Bytes
    peak_bytes: Bytes | None = None
    moving_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None
    parts: dict[str, Real] | None = None
    roofline: dict[str, Real] | None = None


class RunFineTuning(_Part):
    """As app/web/rest/openai_jobs.py keeps it: the body, and what its check said."""

    job: dict[str, Any] = {}
    notes: list[str] = []


class RunJob(_Part):
    """As `worker.store.jobs` and the engine keep it."""

    state: str = ""
    nodes: str = ""
    reason: str = ""
    partition: str = ""
    starts_at: Time | None = None
    reserved_at: Time = 0.0
    tries: Count = 0
    excluded: str = ""
    cancelled_here: bool = False
    engine: str = ""


class Problem(_Part):
    """Why an evaluation or a build failed."""

    field: str = ""
    message: str = ""
    fix: str = ""


class Mean(_Part):
    """The mean of a metric over `rows`, with its interval; `unbounded`: its scores are no shares."""

    mean: Real
    low: Real
    high: Real
    rows: Count
    unbounded: bool = False


class MetricTrouble(_Part):
    """Why rows have no score of a metric, and how many."""

    failed: Count
    sentence: str
    kind: str


class Forgetting(_Part):
    """As training/results/forgetting.py measures it: nats per token."""

    prompts: Count
    tokens: Count
    kl: Real | None
    text_tokens: Count
    loss_before: Real
    loss_after: Real


class EvaluationSummary(_Part):
    """As worker/evaluations/scoring.py writes it, or the results of lm-eval."""

    rows: Count = 0
    metrics: dict[str, Mean] = {}
    lm_eval: dict[str, Values] | None = None
    engine: dict[str, str] | None = None
    troubles: dict[str, MetricTrouble] = {}
    card: ScoreCard | None = None
    cases: dict[str, Count] = {}
    forgetting: Forgetting | None = None
    training_rows: Count | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.lm_eval is None and not {"rows", "metrics"} <= self.model_fields_set:
            raise ValueError("neither rows and metrics nor lm_eval")
        return self


CountedOverlap = create_model("CountedOverlap", **{one.name: (one.type, ...) for one in fields(Overlap)})  # type: ignore[call-overload]


class NoOverlap(_Part):
    """Why overlap with the training rows was not counted."""

    problem: str


class Prompt(_Part):
    """A prompt of a prompt set."""

    user: str
    system: str = ""


class Finding(_Part):
    """As `worker.doctor.finding.Finding`."""

    subject: str
    state: str
    said: str
    cure: str


class Told(_Part):
    """The run of a notification, as worker/store/outbox.py stores it."""

    id: str = ""
    name: str = ""
    step: Count = 0
    total_steps: Count | None = None
    final_loss: Real | None = None
    best_loss: Real | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    worked_seconds: Real = 0.0
    error: RunFailure | None = None


def _changes(values: Values) -> Values:
    """Of each setting, its type; only of a value with another type, such as an older version's, what a run would say of it."""
    try:
        _types().validate_python(values)
    except ValidationError:
        known = {name: value for name, value in values.items() if name in RunConfig.model_fields}
        try:
            RunConfig.model_validate({"model": "-", "data": "-"} | known)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from None
    return values


def _config(values: Values) -> Values:
    if missing := {"model", "data"} - values.keys():
        raise ValueError(f"{' and '.join(sorted(missing))} missing")
    return _changes(values)


Changes = Annotated[Values, AfterValidator(_changes)]
"""Settings of a run."""
Config = Annotated[Values, AfterValidator(_config)]
"""The settings of a run, with its model and data."""


@cache
def _types() -> TypeAdapter[Any]:
    """Only the types of the settings: their validators take several times as long, and lists have many runs."""
    types: Any = {
        name: (Union[tuple(map(_plain, get_args(field.annotation) or (field.annotation,)))], None)  # noqa: UP007
        for name, field in RunConfig.model_fields.items()
    }
    return TypeAdapter(create_model("SettingTypes", **types))


def _plain(kind: Any) -> Any:
    if kind is type(None):
        return None
    if kind is int:
        return Annotated[int, Field(strict=True, gt=-(2**63), lt=2**63)]
    return kind if issubclass(kind, StrEnum) else Annotated[kind, Field(strict=True)]

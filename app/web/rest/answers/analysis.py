"""Comparisons, forecasts, trainable parameters, translated configurations and diagnoses."""

from typing import Any

from pydantic import Field

from app.documents.diagnoses import Recent
from app.web.rest.answers.errors import ErrorEntry
from app.web.rest.answers.form import Answer
from training.forecast.formula.activations import Batch
from training.template_check.findings import Finding, ShownRow
from worker.store.tables import Status


class ComparedRun(Answer):
    """A run of a comparison."""

    id: str
    name: str
    status: Status
    method: str


class ComparisonAnswer(Answer):
    """Results, settings and other differences of runs. Each list has a value for each run, in their order; null: it has none."""

    runs: list[ComparedRun]
    measures: dict[str, list[Any]] = Field(description="results")
    best: dict[str, list[int]] = Field(description="positions, from 0, of the best value of a result")
    settings: dict[str, list[Any]] = Field(description="settings that differ, or all")
    circumstances: dict[str, list[Any]] = Field(description="what else differs, such as devices and attempts")
    against_first: list[dict[str, Any]] = Field(
        description="what answers to the same held-out rows show against the first run"
    )
    labels: dict[str, str] = Field(description="each key in words")


class PlotLine(Answer):
    """A metric of a run: places on the axis, values, and the extremes of each point (null if they equal the values).

    `step` is the last one of the last point, `width` the number of steps that a point covers.
    """

    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    step: int
    width: int


class Lines(Answer):
    """The metrics of runs by RUN/METRIC."""

    lines: dict[str, PlotLine]


class Group(Answer):
    """Equal modules: their name with * for the layer number, their count, and the shape of each as "in -> out"."""

    pattern: str
    count: int
    shape: str


class Targets(Answer):
    """Counts of parameters, and the modules of the model in groups."""

    trainable: int
    total: int
    matched: list[Group] = Field(description="modules that carry the adapter")
    whole: list[Group] = Field(description="modules that train in full")
    others: list[Group] = Field(description="the remaining linear layers")


class Proposal(Answer):
    """Settings that fit: the changes, their speed relative to the settings asked for, and what they cost."""

    changes: dict[str, Any]
    relative_speed: float
    cost: str
    fits: bool
    peak_bytes: int
    host_bytes: int


class SpeedAnswer(Answer):
    """How long a run takes and what it costs, each from the best to the worst case; null without a basis, which `notes` name."""

    tokens_per_second: list[float] | None
    seconds_per_step: list[float] | None
    steps: int | None
    hours: list[float] | None
    kwh: list[float] | None = Field(description="of the GPUs")
    cost: list[float] | None = Field(description="by the caller's prices of a GPU hour and a kWh")
    notes: list[str]


class SolvedAnswer(Answer):
    """The most that fits: the value of a setting, the changes that apply it, its memory in bytes."""

    setting: str
    value: int | str | None = Field(description="null if nothing fits; `reason` says why")
    changes: dict[str, Any]
    bounded: bool = Field(description="more makes no difference")
    confirmed: bool | None = Field(description="by a simulated step; null if none was simulated")
    reason: str
    peak_bytes: int | None
    limit_bytes: int | None


class ForecastAnswer(Answer):
    """Whether a run fits, in bytes. Each moment of a step has its parts; `peak_bytes` is the largest one's."""

    fits: bool
    reasons: list[str]
    peak_bytes: int
    moment: str
    parts: dict[str, int]
    close: bool = Field(
        description="true if the limit is within the error of the formula, so that a simulated step decides"
    )
    moments: dict[str, int]
    host_bytes: int
    copies_bytes: int = Field(description="the part of host_bytes for asynchronous checkpoints")
    nvme_bytes: int
    limit_bytes: int | None = Field(description="of the GPU; null without one")
    host_limit_bytes: int | None
    trainable_parameters: int
    total_parameters: int
    batch: Batch
    advice: list[Proposal]
    first_step: dict[str, Any] | None = Field(description="the changes that save memory first; null if the run fits")
    notes: list[str]
    worst_batch: dict[str, Any] | None = Field(
        description="the largest batch of the data set; null if it is not tokenized"
    )
    simulated: dict[str, Any] | None = None
    speed: SpeedAnswer
    solved: list[SolvedAnswer] | None = None


class ConflictAnswer(Answer):
    """Settings that cannot (`blocking`) or should not be combined, the reason, and the `changes` that fix it."""

    settings: list[str]
    reason: str
    fix: str
    changes: dict[str, Any]
    blocking: bool


class ConfigCheck(Answer):
    """Whether a run could be queued, and what it would be started with."""

    ready: bool
    problems: list[ErrorEntry]
    conflicts: list[ConflictAnswer]
    global_batch_size: int
    command: str = Field(description="the command that starts the training")
    yaml: str = Field(description="the settings as a file for `lathe run`")


class TranslatedKey(Answer):
    """A key of the file, what became of it, and the settings that it gives."""

    key: str
    value: Any
    outcome: str
    settings: dict[str, Any]
    note: str


class Translation(Answer):
    """A configuration of another program as settings of a run; `missing` are required settings that it does not give."""

    programs: list[str]
    settings: dict[str, Any]
    missing: list[str]
    keys: list[TranslatedKey]


class DiagnosisAnswer(Answer):
    """Why a run failed. `confidence` is 0 to 1; `evidence` are lines of the log; `changes` are settings that fix the run."""

    cause: str
    title: str
    confidence: float
    explanation: str
    evidence: list[str]
    evidence_lines: list[int]
    first_failed_rank: int | None
    fix: list[str]
    changes: dict[str, Any]
    inferred: dict[str, Any]


class SharedIn(Answer):
    """Where a diagnosis was shared: its id, and the path of its page on this server."""

    id: str
    address: str


class LogDiagnosis(DiagnosisAnswer):
    """The diagnosis of a log; `shared`, if it was asked for, tells where it is."""

    shared: SharedIn | None = None


class Compared(Answer):
    """The failed run beside the finished one most like it: settings that differ as [its, the other's], and new log lines."""

    run: str
    name: str
    shared: list[str]
    settings: dict[str, list[Any]]
    lines: list[Any]


class RunDiagnosis(DiagnosisAnswer):
    """The diagnosis of a run, and the run beside a finished one (null if there is none like it)."""

    compared: Compared | None


class SharedDiagnosisAnswer(Answer):
    """A shared diagnosis with its log, both without secrets."""

    id: str
    owner: str
    created_at: float
    diagnosis: DiagnosisAnswer
    log: str
    address: str


class RecentDiagnoses(Answer):
    """The last ten diagnoses of failed runs and shared logs, newest first."""

    diagnoses: list[Recent]


class RenderedSet(Answer):
    """A data set as a run would train on it: the faults, errors first, the number of rows checked, and the first rows as tokens."""

    name: str
    findings: list[Finding]
    checked: int = Field(description="rows checked token by token")
    rendered: int = Field(description="rows rendered, in which each text of the row was looked for")
    complete: bool = Field(description="false if time was too short to render all")
    rows: list[ShownRow]


class Rendering(Answer):
    """The rendered rows of a run's training data sets."""

    data_sets: list[RenderedSet]

"""Settings before a run: whether it fits and could be queued, what it trains and on which tokens; other programs' settings."""

from typing import Any, Literal

from pydantic import Field

from app.documents import Document, ErrorEntry, columns
from training.forecast.formula.activations import Batch
from training.rules.conflict import Conflict
from training.template_check.findings import Finding, ShownRow
from worker.forecasts.speed import Speed


class Group(Document):
    """Equal modules: their name with * for the layer number, their count, and the shape of each as "in -> out"."""

    pattern: str
    count: int
    shape: str


class Targets(Document):
    """Counts of parameters, and the modules of the model in groups."""

    trainable: int
    total: int
    matched: list[Group] = Field(description="modules that carry the adapter")
    whole: list[Group] = Field(description="modules that train in full")
    others: list[Group] = Field(description="the remaining linear layers")


class Proposal(Document):
    """Settings that fit: the changes, their speed relative to the settings asked for, and what they cost."""

    changes: dict[str, Any]
    relative_speed: float
    cost: str
    fits: bool
    peak_bytes: int
    host_bytes: int


@columns(Speed)
class SpeedAnswer(Document):
    """How long a run takes and what it costs, each from the best to the worst case; null without a basis, which `notes` name. `kwh`
    is what the GPUs use, `cost` by the caller's prices of a GPU hour and a kWh.
    """


class SolvedAnswer(Document):
    """The most that fits: the value of a setting, the changes that apply it, its memory in bytes."""

    setting: str
    value: int | str | None = Field(description="null if nothing fits; `reason` says why")
    changes: dict[str, Any]
    bounded: bool = Field(description="more makes no difference")
    confirmed: bool | None = Field(description="by a simulated step; null if none was simulated")
    reason: str
    peak_bytes: int | None
    limit_bytes: int | None


class ForecastAnswer(Document):
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
    host_bytes: int = Field(description="the most host memory that the ranks of a machine need")
    host_moments: dict[str, int] = Field(
        description="the same while the weights are loaded, in training, and while a result is saved or a checkpoint loaded"
    )
    copies_bytes: int = Field(description="the part of host_bytes in training for asynchronous checkpoints")
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


@columns(Conflict)
class ConflictAnswer(Document):
    """Settings that cannot (`blocking`) or should not be combined, the reason, and the `changes` that fix it."""


class HeldOutCheck(Document):
    """How many of the held-out rows are near duplicates of training rows."""

    status: Literal["running", "done"] = Field(description="running while rows are compared: ask again")
    leaked: int = Field(description="near duplicates of training rows; exclude_leaked_rows leaves them out")
    rows: int = Field(description="all held-out rows")
    done: int = Field(description="rows that are compared so far")
    total: int


class ConfigCheck(Document):
    """Whether a run could be queued, and what it would be started with."""

    ready: bool
    problems: list[ErrorEntry]
    conflicts: list[ConflictAnswer]
    global_batch_size: int
    command: str = Field(description="the command that starts the training")
    yaml: str = Field(description="the settings as a file for `lathe run`")
    held_out: HeldOutCheck | None = Field(
        description="null if the data is not tokenized yet, or the run holds out no rows"
    )


class TranslatedKey(Document):
    """A key of the file, what became of it, and the settings that it gives."""

    key: str
    value: Any
    outcome: str
    settings: dict[str, Any]
    note: str


class Translation(Document):
    """A configuration of another program as settings of a run; `missing` are required settings that it does not give."""

    programs: list[str]
    settings: dict[str, Any]
    missing: list[str]
    keys: list[TranslatedKey]


class RenderedSet(Document):
    """A data set as a run would train on it: the faults, errors first, the number of rows checked, and the first rows as tokens."""

    name: str
    findings: list[Finding]
    checked: int = Field(description="rows checked token by token")
    rendered: int = Field(description="rows rendered, in which each text of the row was looked for")
    complete: bool = Field(description="false if time was too short to render all")
    rows: list[ShownRow]


class Rendering(Document):
    """The rendered rows of a run's training data sets."""

    data_sets: list[RenderedSet]

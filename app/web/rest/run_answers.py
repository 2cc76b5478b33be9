"""The forms of answers about runs, their logs, events, metrics and outputs, and the queue."""

from typing import Literal

from pydantic import Field

from app.documents.results.outputs import Output
from app.documents.results.snippets import Snippet
from app.documents.run import ATTEMPT, BRIEF, EVENT, WHOLE
from app.web.rest.routing import Answer, columns
from worker.store.series import Series
from worker.store.tables import Attempt, LogLine, Run, RunEvent, Status


@columns(Run, BRIEF)
class RunInList(Answer):
    """A run in a list. Times are seconds since the epoch, sizes bytes, `seconds_per_step` seconds."""

    model: str | None
    data: str | None = Field(description="id of the training data set; several with their weights")
    method: str | None
    damaged: list[str] = Field(description="fields that cannot be read and have no value here")
    differs: bool = Field(description="true if the result does not compute what was trained")


class RunList(Answer):
    """The runs that match, pinned ones first, then the newest, and how many match in all."""

    runs: list[RunInList]
    total: int


@columns(Attempt, ATTEMPT)
class AttemptAnswer(Answer):
    """One start of a run, with how it ended."""


@columns(RunEvent, EVENT)
class EventAnswer(Answer):
    """Something that happened in a run: a phase, a checkpoint, a resume, a note, a stop, a failure."""


class NumberedEvent(EventAnswer):
    """An event with its id, by which lists are read on."""

    id: int


class RankMemory(Answer):
    """The memory of a rank at its peak, in bytes: predicted, measured (tensors), and held by the allocator."""

    rank: int
    predicted_bytes: int
    measured_bytes: int | None
    reserved_bytes: int | None


class Place(Answer):
    """The place of a queued run: 1 is next. `overloaded` names machines that start nothing at present, with the reasons; `job` says
    what its job waits for; `quota` how its owner's quota keeps it from starting; `memory` why it is not expected to fit in the
    memory of the server's machine. Each is empty where it does not apply.
    """

    place: int
    waiting: int
    running: int
    overloaded: str
    job: str
    quota: str
    memory: str


@columns(Run, WHOLE)
class RunAnswer(Answer):
    """A run with its attempts, events and latest metrics. Times are seconds since the epoch, sizes bytes."""

    damaged: list[str] = Field(description="fields that cannot be read and have no value here")
    differs: bool = Field(description="true if the result does not compute what was trained")
    attempts: list[AttemptAnswer]
    events: list[EventAnswer]
    latest: dict[str, float | None] = Field(description="newest value of each metric")
    memory: list[RankMemory]
    queue: Place | None = Field(description="its place among the waiting runs; null if it does not wait")


class SeriesList(Answer):
    """The metrics of a run by name and rank (-1 for the whole run), as parallel lists in the order of steps."""

    series: list[Series]


@columns(LogLine, ("attempt", "time", "text"))
class LogLineAnswer(Answer):
    """A line that the training process printed. `level` and `rank` are in the answers to filtered requests."""

    id: int
    level: Literal["info", "warning", "error"] | None = None
    rank: int | None = None


class _Part(Answer):
    next: int = Field(description="send it as `after` to read on")
    status: Status
    ended: bool = Field(description="true if the run has ended, so that nothing more can come")


class LogPart(_Part):
    """Lines of a log, oldest first. `more`, of filtered requests: lines after `next` were not searched yet."""

    lines: list[LogLineAnswer]
    more: bool = False


class EventPart(_Part):
    """Events of a run, oldest first."""

    events: list[NumberedEvent]


class Outputs(Answer):
    """Every form of a run's result, and snippets that use it."""

    outputs: list[Output]
    snippets: list[Snippet]


class Waiting(Answer):
    """A waiting run. `starts_in` is in seconds, null if the run is held, its owner's quota keeps it from starting, or the time of a
    run ahead of it is unknown. `quota` is that of the owner in words, if it is the reason.
    """

    place: int
    id: str
    name: str
    owner: str
    priority: Literal["high", "normal", "low"]
    held: bool
    at_rung: int | None = Field(description="the step at which its sweep paused it")
    processes: int
    queued_at: float
    starts_in: float | None
    quota: str


class QueueAnswer(Answer):
    """The waiting runs in the order in which they start; `paused_at` and `paused_by` are null unless the queue is paused.
    `overloaded` names machines that start nothing at present, with the reasons; `evaluated` the runs that are being evaluated.
    """

    paused_at: float | None
    paused_by: str | None
    overloaded: str
    running: int
    evaluated: list[str]
    waiting: list[Waiting]

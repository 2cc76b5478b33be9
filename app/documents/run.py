"""Runs: in a list, and one with all that is known of it. Read-only."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from sqlmodel import Session

from app.documents import Document, Stored, columns
from app.format.dataset_text import data_words
from app.format.forecast_text import misfit
from app.format.run_text import has_rewards
from training.config.data_sets import FIELDS, sources
from training.config.fields import settings
from training.errors import UserError
from worker.datasets import datasets
from worker.engines.registry import engine_of
from worker.forecasts import run_forecast
from worker.machine import overload
from worker.runs.settle import settle
from worker.store import database, history, run_list, runs, series, sweeps, waiting
from worker.store.jobs import submitted_id
from worker.store.quotas import DeviceQuotas
from worker.store.series import Series
from worker.store.tables import Attempt, Run, RunEvent, Status

_BRIEF = (
    "id", "name", "owner", "status", "phase", "step", "total_steps", "attempt", "created_at", "queued_at", "started_at",
    "finished_at", "worked_seconds", "working_since", "devices", "job_id",
    "tags", "pinned", "archived_at", "sweep_id", "trial", "pause_at", "held", "priority", "final_loss", "best_loss", "diverged",
    "peak_bytes", "seconds_per_step",
)  # fmt: skip
_WHOLE = (
    *_BRIEF, "config", "summary", "error", "plan", "stepped_down", "forecast", "request", "phase_done", "phase_total", "dataset_id",
    "notes", "fingerprints", "parent_id", "job",
)  # fmt: skip
_LISTED = ("model", "data", "method", "task")
"""Settings in lists."""
_ATTEMPT = (
    "number",
    "host",
    "devices",
    "started_at",
    "ended_at",
    "outcome",
    "exit_code",
    "reason",
    "stepped_down",
    "out_of_memory",
)
EVENT = ("time", "attempt", "kind", "level", "step", "message")


@columns(Run, _BRIEF)
class RunInList(Stored):
    """A run in a list. Times are seconds since the epoch, sizes bytes, `seconds_per_step` seconds."""

    model: str | None
    data: str | None = Field(description="id of the training data set; several with their weights")
    method: str | None
    task: str | None
    differs: bool = Field(description="true if the result does not compute what was trained")
    undone: dict[str, str] = Field(description="phases after its result was saved that were not done, with the reasons")


class RunGroup(Document):
    """Listed runs in which the same setting, or what else they are grouped by, has the value `value`."""

    value: str = Field(description="as pages show it; empty if the runs have none")
    runs: list[str] = Field(description="ids of those in this answer")
    total: int = Field(description="how many there are in all")
    best_loss: float | None = Field(description="the least evaluation loss of them all")
    rewarded: bool = Field(description="true if their evaluations measure a reward, of which the loss is the negative")


class RunList(Document):
    """The runs that match, pinned ones first, then the newest, and how many match in all."""

    runs: list[RunInList]
    total: int
    groups: list[RunGroup] = Field([], description="with `group`, in the order of `runs`")


@columns(Attempt, _ATTEMPT)
class AttemptAnswer(Stored):
    """One start of a run, with how it ended."""


@columns(RunEvent, EVENT)
class EventAnswer(Document):
    """Something that happened in a run: a phase, a checkpoint, a resume, a note, a stop, a failure."""


class RankMemory(Document):
    """The memory of a rank at its peak, in bytes: predicted, measured (tensors), and held by the allocator."""

    rank: int
    predicted_bytes: int
    measured_bytes: int | None
    reserved_bytes: int | None


class Place(Document):
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


@columns(Run, _WHOLE)
class RunAnswer(Stored):
    """A run with its attempts, events and latest metrics. Times are seconds since the epoch, sizes bytes."""

    differs: bool = Field(description="true if the result does not compute what was trained")
    undone: dict[str, str] = Field(description="phases after its result was saved that were not done, with the reasons")
    attempts: list[AttemptAnswer]
    events: list[EventAnswer]
    latest: dict[str, float | None] = Field(description="newest value of each metric")
    memory: list[RankMemory]
    queue: Place | None = Field(description="its place among the waiting runs; null if it does not wait")


class SeriesList(Document):
    """The metrics of a run by name and rank (-1 for the whole run), as parallel lists in the order of steps."""

    series: list[Series]


def brief(run: Run) -> RunInList:
    """A run as `lathe runs` lists it."""
    named = {name: value for name in _LISTED if isinstance(value := run.config.get(name), str)}
    return RunInList(**_of_row(run, _BRIEF), **dict.fromkeys(_LISTED) | named)


def grouped(session: Session, group_by: str, query: run_list.Query) -> tuple[list[Run], list[RunGroup]]:
    """The runs of a list that `run_list.groups` makes, and its groups.

    Raises:
        FilterError: the filter is wrong, or runs cannot be grouped so.
    """
    groups = run_list.groups(session=session, group_by=group_by, query=query)
    listed = [run for group in groups for run in group.runs]
    names = {item.id: item.name for item in datasets.listing(session=session)}
    names |= sweeps.titles(session=session, sweep_ids={run.sweep_id for run in listed if run.sweep_id})
    values = [_group_value(group.runs[0], group_by, names) for group in groups]
    return listed, [
        RunGroup(
            value=value if values.count(value) == 1 else _with_ids(value, group.runs[0], group_by),
            runs=[run.id for run in group.runs],
            total=group.total,
            best_loss=group.best_loss,
            rewarded=all(map(has_rewards, group.runs)),
        )
        for value, group in zip(values, groups, strict=True)
    ]


def _with_ids(value: str, run: Run, group_by: str) -> str:
    """The value, with the data sets that it names: these can have the same name."""
    ids = [source.path for source in sources(run.config.get(group_by))] if group_by in FIELDS else []
    return " · ".join([value, *ids])


def _group_value(run: Run, group_by: str, names: Mapping[str, str]) -> str:
    match group_by:
        case "owner" | "status":
            return str(getattr(run, group_by))
        case "tag":
            return ", ".join(run.tags)
        case "sweep":
            return names.get(run.sweep_id or "", "")
        case "data" | "validation_data":
            return data_words(run.config.get(group_by), names)
        case _:
            value = run.config.get(group_by, settings()[group_by].default)
            return "" if value is None else settings()[group_by].in_words(value)


def document(session: Session, run_id: str) -> RunAnswer:
    """What is known of a run: `attempts` and `events` oldest first.

    `memory` compares the forecast with what each rank measured. `summary` is as the training program reported it, null until it
    ended, and `memory` empty.

    Raises:
        RunNotFound: no run has this id.
    """
    run = runs.get(session=session, run_id=run_id)
    queue = place(session, run)
    latest = series.latest(session=session, run_id=run.id)
    return RunAnswer(
        **_of_row(run, _WHOLE),
        attempts=[AttemptAnswer.model_validate(one) for one in runs.attempts(session=session, run_id=run.id)],
        events=[EventAnswer.model_validate(event) for event in history.events(session=session, run_id=run.id)],
        latest={name: value for (name, rank), (_, value) in latest.items() if rank < 0},
        memory=[RankMemory(**rank) for rank in run_forecast.compared(run.forecast, run.summary)],
        queue=queue and queue.model_copy(update={"memory": _misfit(run)}),
    )


def _of_row(run: Run, names: tuple[str, ...]) -> dict[str, Any]:
    job = {"job_id": submitted_id(run)}
    return run.shown(*names) | job | {"differs": run.differs, "undone": run.undone}


def _misfit(run: Run) -> str:
    """Why a queued run is not expected to fit in this machine's memory; empty if it is, or if it is unknown."""
    try:
        settled = settle(run.used)
        return misfit(run_forecast.verdict(settled, settled.machine), settled.config)
    except UserError:  # also of a damaged row
        return ""


def place(session: Session, run: Run) -> Place | None:
    """Where a queued run stands, without `memory`, which takes time to forecast; None for other runs."""
    if run.status is not Status.QUEUED:
        return None
    ids = [other.id for other in waiting.waiting(session=session)]
    position = ids.index(run.id) + 1 if run.id in ids else len(ids) + 1
    running = runs.with_status(session=session, status=Status.RUNNING)
    obstacle = run.obstacle()
    waits = (
        f"No worker can start it: {obstacle}" if obstacle else engine_of(run).reason_to_wait(session=session, run=run)
    )
    with database.read_everything() as whole:
        quotas = DeviceQuotas.read(whole)
    return Place(
        place=position,
        waiting=max(len(ids), position),
        running=len(running),
        overloaded=overload.in_words(),
        job=waits,
        quota=quotas.reason(run),
        memory="",
    )

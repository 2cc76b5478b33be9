"""The queue. Read-only."""

from pydantic import Field
from sqlmodel import Session

from app.documents import Document
from worker.choices import Priority
from worker.engine_traits import ENGINES
from worker.machine import devices, overload
from worker.runs import pace
from worker.settings import SettingsError
from worker.store import database, evaluations, machines, runs, sight, waiting
from worker.store.quotas import DeviceQuotas
from worker.store.tables import Run, Status


class Waiting(Document):
    """A waiting run. `starts_in` is in seconds, null if the run is held, its owner's quota keeps it from starting, or the time of a
    run ahead of it is unknown. `quota` is that of the owner in words, if it is the reason.
    """

    place: int
    id: str
    name: str
    owner: str
    priority: Priority
    held: bool
    at_rung: int | None = Field(description="the step at which its sweep paused it")
    processes: int
    queued_at: float
    starts_in: float | None
    quota: str


class QueueAnswer(Document):
    """The waiting runs in the order in which they start; `paused_at` and `paused_by` are null unless the queue is paused.
    `overloaded` names machines that start nothing at present, with the reasons; `evaluated` the runs that are being evaluated.
    """

    paused_at: float | None
    paused_by: str | None
    overloaded: str
    running: int
    evaluated: list[str]
    waiting: list[Waiting]


def document(session: Session) -> QueueAnswer:
    """The queue. The id, name, owner and quota of runs that the session's user does not see are hidden."""
    with database.read_everything() as whole:
        queued = waiting.waiting(session=whole)
        running = len(runs.with_status(session=whole, status=Status.RUNNING))
        starts, quotas, evaluated = _starts(whole, queued), DeviceQuotas.read(whole), evaluations.running(session=whole)
        queue = [_waiting(run, place, starts.get(run.id), quotas) for place, run in enumerate(queued, 1)]
    seen = sight.visible(session, [run.id for run in queued] + [run_id for run_id, _ in evaluated])
    paused = waiting.paused(session=session)
    return QueueAnswer(
        paused_at=paused.paused_at if paused else None,
        paused_by=paused.paused_by if paused else None,
        overloaded=overload.in_words() if queued else "",
        running=running,
        evaluated=[name if run_id in seen else sight.ANOTHER_RUN for run_id, name in evaluated],
        waiting=[run if run.id in seen else _hidden(run) for run in queue],
    )


def _waiting(run: Run, place: int, starts_in: float | None, quotas: DeviceQuotas) -> Waiting:
    return Waiting(
        place=place,
        id=run.id,
        name=run.name,
        owner=run.owner,
        priority=Priority(waiting.priority_word(run.priority)),
        held=run.held,
        at_rung=run.step if run.held and run.at_rung else None,
        processes=run.config.get("num_processes", 1),
        queued_at=run.queued_at,
        starts_in=starts_in,
        quota=quotas.reason(run),
    )


def _hidden(run: Waiting) -> Waiting:
    """What a user who does not see the run may know of it."""
    anonymous = {"id": f"{sight.HIDDEN}{run.place}", "name": sight.ANOTHER_RUN, "owner": sight.ANOTHER}
    return run.model_copy(update=anonymous | {"at_rung": None, "quota": ""})


def _starts(session: Session, queued: list[Run]) -> dict[str, float | None]:
    """The seconds until each run starts: those of jobs as their engine expects it."""
    if not queued:
        return {}
    starts, now = pace.expected(session=session, devices=device_count(session)), database.now(session=session)
    for run in queued:
        if ENGINES[run.engine].has_jobs:
            at = (run.job or {}).get("starts_at")
            starts[run.id] = None if at is None else max(at - now, 0.0)
    return starts


def device_count(session: Session) -> int:
    """The devices of all machines whose workers report; before the first report, those of this machine."""
    reporting = [machine for machine in machines.reporting(session=session) if not machine.draining]
    if reporting:
        return sum(len(machines.usable_devices(machine)) for machine in reporting)
    try:
        return len(devices.own_devices())
    except SettingsError:
        return 1

"""The queue: what the page Runs shows, and REST and `lathe queue --json` give as a dictionary."""

from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from training.config.choices import EngineName
from worker.machine import devices, overload
from worker.runs import start_times
from worker.settings import SettingsError
from worker.store import database, runs, sight, waiting
from worker.store.engine_names import engine_name
from worker.store.quotas import DeviceQuotas
from worker.store.system import machines
from worker.store.tables import QueueState, Run, Status


@dataclass(frozen=True)
class Queue:
    """The queue at one moment: the waiting runs in their order, and the seconds until each starts, by id (None if unknown)."""

    waiting: list[Run]
    running: int
    paused: QueueState | None
    starts: dict[str, float | None]
    overloaded: str
    quotas: DeviceQuotas


def read(session: Session) -> Queue:
    """The queue as the database has it; of runs that the session's user does not see, only their places."""
    with database.read_everything() as whole:
        queued = waiting.waiting(session=whole)
        running = len(runs.with_status(session=whole, status=Status.RUNNING))
        starts, quotas = _starts(whole, queued), DeviceQuotas.read(whole)
    seen = sight.visible(session, [run.id for run in queued])
    shown = [run if run.id in seen else _hidden(run, place) for place, run in enumerate(queued, 1)]
    return Queue(
        waiting=shown,
        running=running,
        paused=waiting.paused(session=session),
        starts={new.id: starts.get(old.id) for new, old in zip(shown, queued, strict=True)},
        overloaded=overload.in_words() if queued else "",
        quotas=quotas,
    )


def _hidden(run: Run, place: int) -> Run:
    """What a user who does not see the run may know of it."""
    processes = {"num_processes": run.config.get("num_processes", 1)}
    same = {name: getattr(run, name) for name in ("queued_at", "priority", "held", "created_at")}
    return Run(id=f"{sight.HIDDEN}{place}", name=sight.ANOTHER_RUN, owner=sight.ANOTHER, config=processes, **same)


def _starts(session: Session, queued: list[Run]) -> dict[str, float | None]:
    """The seconds until each run starts: those of Slurm's queue as Slurm expects it."""
    if not queued:
        return {}
    starts, now = start_times.expected(session=session, devices=device_count(session)), database.now(session=session)
    for run in queued:
        if engine_name(run) is EngineName.SLURM:
            at = (run.job or {}).get("starts_at")
            starts[run.id] = None if at is None else max(at - now, 0.0)
    return starts


def document(session: Session) -> dict[str, Any]:
    """The waiting runs in their order, and whether the queue is paused.

    `starts_in` is in seconds, null if the run is held, its owner's quota keeps it from starting, which `quota` then says, or the
    time of a run ahead of it is unknown. Other times are seconds since the epoch.
    """
    queue = read(session)
    return {
        "paused_at": queue.paused.paused_at if queue.paused else None,
        "paused_by": queue.paused.paused_by if queue.paused else None,
        "running": queue.running,
        "waiting": [
            {
                "place": place,
                "id": run.id,
                "name": run.name,
                "owner": run.owner,
                "priority": waiting.priority_word(run.priority),
                "held": run.held,
                "processes": run.config.get("num_processes", 1),
                "queued_at": run.queued_at,
                "starts_in": queue.starts.get(run.id),
                "quota": queue.quotas.reason(run),
            }
            for place, run in enumerate(queue.waiting, 1)
        ],
    }


def device_count(session: Session) -> int:
    """The devices of all machines whose workers report; before the first report, those of this machine."""
    now = database.now(session=session)
    reporting = [one for one in machines.listing(session=session) if machines.is_fresh(one, now) and not one.draining]
    if reporting:
        return sum(len(machines.usable_devices(machine)) for machine in reporting)
    try:
        return len(devices.own_devices())
    except SettingsError:
        return 1

"""The queue as a dictionary: what the page Runs shows, and REST and `lathe queue --json` give. Read-only."""

from typing import Any

from sqlmodel import Session

from training.config.choices import EngineName
from worker.machine import devices, overload
from worker.runs import start_times
from worker.settings import SettingsError
from worker.store import database, evaluations, machines, runs, sight, waiting
from worker.store.quotas import DeviceQuotas
from worker.store.tables import Run, Status


def document(session: Session) -> dict[str, Any]:
    """The waiting runs in their order, and whether the queue is paused.

    `starts_in` is in seconds, null if the run is held, its owner's quota keeps it from starting, which `quota` then says, or the
    time of a run ahead of it is unknown. Other times are seconds since the epoch. The id, name, owner and quota of runs
    that the session's user does not see are hidden.
    """
    with database.read_everything() as whole:
        queued = waiting.waiting(session=whole)
        running = len(runs.with_status(session=whole, status=Status.RUNNING))
        starts, quotas, evaluated = _starts(whole, queued), DeviceQuotas.read(whole), evaluations.running(session=whole)
        queue = [_waiting(run, quotas) for run in queued]
    seen = sight.visible(session, [run.id for run in queued] + [run_id for run_id, _ in evaluated])
    paused = waiting.paused(session=session)
    return {
        "paused_at": paused.paused_at if paused else None,
        "paused_by": paused.paused_by if paused else None,
        "overloaded": overload.in_words() if queued else "",
        "running": running,
        "evaluated": [name if run_id in seen else sight.ANOTHER_RUN for run_id, name in evaluated],
        "waiting": [
            (run if run["id"] in seen else _hidden(run, place)) | {"place": place, "starts_in": starts.get(run["id"])}
            for place, run in enumerate(queue, 1)
        ],
    }


def _waiting(run: Run, quotas: DeviceQuotas) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "owner": run.owner,
        "priority": waiting.priority_word(run.priority),
        "held": run.held,
        "at_rung": run.step if run.held and run.at_rung else None,
        "processes": run.config.get("num_processes", 1),
        "queued_at": run.queued_at,
        "quota": quotas.reason(run),
    }


def _hidden(run: dict[str, Any], place: int) -> dict[str, Any]:
    """What a user who does not see the run may know of it."""
    anonymous = {"id": f"{sight.HIDDEN}{place}", "name": sight.ANOTHER_RUN, "owner": sight.ANOTHER}
    return run | anonymous | {"at_rung": None, "quota": ""}


def _starts(session: Session, queued: list[Run]) -> dict[str, float | None]:
    """The seconds until each run starts: those of Slurm's queue as Slurm expects it."""
    if not queued:
        return {}
    starts, now = start_times.expected(session=session, devices=device_count(session)), database.now(session=session)
    for run in queued:
        if run.engine is EngineName.SLURM:
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

"""The installation as a dictionary: what `lathe system --json` prints, REST returns and the page System shows. Read-only."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from sqlmodel import Session

from app.documents import disk, services
from worker.disk import background
from worker.disk.usage import Usage
from worker.machine.devices import JOB
from worker.settings import get_settings
from worker.store import accounts, database, machines, quotas, sight
from worker.store.machines import Lease
from worker.store.tables import EngineReport, Machine

_ACCOUNT = ("name", "max_devices", "max_waiting", "max_disk_bytes")
_UNMEASURED = {
    **dict.fromkeys(("memory_used_bytes", "temperature_celsius", "utilization", "power_watts", "power_limit_watts")),
    "problem": "",
    "others": "",
}
_LEASE = ("run_id", "name", "owner", "phase", "step", "total_steps")


def document(
    may_change: Callable[[str], bool],
    *,
    wait: bool = False,
    services_of: Callable[..., dict[str, Any]] = services.document,
) -> dict[str, Any]:
    """The installation. Times are seconds since the epoch by the database's clock, sizes bytes.

    Args:
        may_change: Takes an owner; true if the caller may change what the owner has. It decides what the caller can free.
        wait: Waits for the measurement of the disk use; without, its figures can be missing or some minutes old.
        services_of: Makes the part of the services, from the machines.
    """
    measured = background.disk()
    figures = measured.measured()
    if wait:
        figures = measured.wait()
    with database.read() as session:
        current = fleet(session, figures.usage)
    return current | {
        "disk": disk.document(figures, measured.freed, may_change),
        "retention": disk.retention_document(figures),
        **services_of(current["machines"]),
    }


def fleet(session: Session, usage: Usage | None = None) -> dict[str, Any]:
    """`time`, the `machines` with their devices and the runs that hold them, `other_leases` of unknown machines, `queue`, and the
    `engines` with machines of their own: their partitions, and how many runs wait and run there. `put_aside` are the machines that
    runs on several machines avoid, and `accounts` what each uses and may use at once, of those that the user sees.
    """
    now, leases = database.now(session=session), _leases(session)
    known = [_machine(machine, leases, now) for machine in machines.listing(session=session)]
    named = {device["name"] for machine in known for device in machine["devices"]}
    return {
        "time": now,
        "machines": known,
        "other_leases": [_lease(lease) for lease in leases if lease.device not in named and JOB not in lease.device],
        "engines": [_engine(report, now) for report in machines.engine_reports(session=session)],
        "queue": _queue(session),
        "put_aside": [one.model_dump() for one in machines.cordons(session=session)],
        "accounts": _accounts(usage),
    }


def _accounts(usage: Usage | None) -> list[dict[str, Any]]:
    """What each account uses and may use; `disk_bytes` as it was measured last."""
    own = sight.user()
    with database.read_everything() as whole:
        found = [account for account in accounts.listing(session=whole) if own in (None, account.name)]
        uses = quotas.used(session=whole, owners=[account.name for account in found])
    return [
        account.model_dump(include=set(_ACCOUNT))
        | vars(uses[account.name])
        | {"disk_bytes": usage.owners.get(account.name, 0) if usage else None}
        for account in found
    ]


def _leases(session: Session) -> list[Lease]:
    """The devices in use; of runs and models that the session's user does not see, only that they use them."""
    with database.read_everything() as whole:
        leases = machines.leases(session=whole)
    if sight.user() is None:
        return leases
    ids = list(dict.fromkeys(lease.run_id for lease in leases))
    seen = sight.visible(session, ids) | {lease.run_id for lease in leases if lease.owner == sight.user()}
    numbers = {run_id: number for number, run_id in enumerate(ids)}
    return [lease if lease.run_id in seen else _hidden(lease, numbers[lease.run_id]) for lease in leases]


def _hidden(lease: Lease, number: int) -> Lease:
    nothing = {"phase": "", "step": 0, "total_steps": None}
    return replace(
        lease, run_id=f"{sight.HIDDEN}{number}", name=sight.ANOTHER_RUN, owner=sight.ANOTHER, **cast(Any, nothing)
    )


def _engine(report: EngineReport, now: float) -> dict[str, Any]:
    return report.capacity | {"age_seconds": max(now - report.reported_at, 0.0)}


def _machine(machine: Machine, leases: Sequence[Lease], now: float) -> dict[str, Any]:
    held = {lease.device: _lease(lease) for lease in leases}
    devices = [_UNMEASURED | device | {"lease": held.get(device["name"])} for device in machine.devices]
    seen = {"age_seconds": max(now - machine.last_seen, 0.0), "state": _state(machine, now)}
    return machine.model_dump(mode="json", exclude={"devices"}) | seen | {"devices": devices}


def _state(machine: Machine, now: float) -> str:
    """`ready`, `overloaded`, `draining` (its worker is stopping), `stopped` (it has ended), or `lost` (reports are missing)."""
    if not machines.is_fresh(machine, now):
        return "stopped" if machine.draining else "lost"
    if machine.draining:
        return "draining"
    return "overloaded" if machine.overload else "ready"


def _lease(lease: Lease) -> dict[str, Any]:
    """The run that holds a device, and when its lease was renewed and expires."""
    expires = lease.expires_at
    renewed = None if expires is None else expires - get_settings().lease_seconds
    values = {name: getattr(lease, name) for name in _LEASE}
    return {"device": lease.device, **values, "renewed_at": renewed, "expires_at": expires}


def _queue(session: Session) -> dict[str, Any]:
    with database.read_everything() as whole:
        queue = machines.queue(session=whole)
    oldest = None
    if queue.oldest:
        run_id, name, queued_at = queue.oldest
        if not sight.visible(session, [run_id]):
            run_id, name = f"{sight.HIDDEN}oldest", sight.ANOTHER_RUN
        oldest = {"run_id": run_id, "name": name, "queued_at": queued_at}
    return {"waiting": queue.waiting, "running": queue.running, "oldest": oldest}

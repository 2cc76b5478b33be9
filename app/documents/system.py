"""The installation: machines, devices, the queue, accounts, disk space and services."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from pydantic import Field
from sqlmodel import Session

from app.documents import Document, Stored, columns, disk
from app.documents.disk import Disk, Retention
from app.documents.users import AccountUse
from worker import services as worker_services
from worker.disk import background
from worker.disk.usage import Usage
from worker.machine import measurement
from worker.machine.devices import JOB
from worker.machine.sizes import Size
from worker.services import Broker, DatabaseFacts
from worker.settings import get_settings
from worker.store import accounts, database, machines, quotas, sight
from worker.store.machines import Lease
from worker.store.tables import Cordon, EngineReport, Machine
from worker.store.tables.reports import Capacity, Device

_ACCOUNT = ("name", "max_devices", "max_waiting", "max_disk_bytes")
_LIMITS = (
    "upload_limit_bytes",
    "token_cache_bytes",
    "connections",
    "lease_seconds",
    "max_attempts",
    "overtaking_seconds",
)

State = Literal["ready", "overloaded", "draining", "stopped", "lost"]


@columns(Device)
class DeviceAnswer(Document):
    """A device as its worker measured it (null: it could not be measured), and the run that holds it."""

    lease: Lease | None


class FindingAnswer(Document):
    """What a worker found wrong with its machine when it started, as `lathe doctor` says it, and what to do about it."""

    subject: str
    state: Literal["warning", "failed"]
    said: str
    cure: str


@columns(Machine, [name for name in Machine.model_fields if name not in ("devices", "findings", "versions")])
class MachineAnswer(Stored):
    """A machine as its worker reported it last. Times are seconds since the epoch, sizes bytes."""

    versions: dict[str, str] = Field(description="of Lathe and the training packages")
    age_seconds: float
    state: State
    devices: list[DeviceAnswer]
    findings: list[FindingAnswer]


@columns(Capacity)
class EngineAnswer(Stored):
    """An engine with machines of its own, and how many runs wait and run there. `problem`: why it does not answer."""

    age_seconds: float


@columns(Cordon, ("host", "since", "reason"))
class AsideAnswer(Document):
    """A machine that runs on several machines avoid, since its second failure; `reason` is the latest one."""


class Oldest(Document):
    """The run that has waited longest."""

    run_id: str
    name: str
    queued_at: float


class QueueCounts(Document):
    """How many runs wait and run."""

    waiting: int
    running: int
    oldest: Oldest | None


class Version(Document):
    """The version of a package in the server's environment, and those of the workers."""

    package: str
    here: str | None
    workers: list[str]


class RunSizes(Document):
    """The disk use of runs by their ids, measured now."""

    runs: dict[str, Size]


class RemovedMachine(Document):
    """The machine that was removed."""

    name: str
    removed: Literal[True]


class UsedMachine(Document):
    """The machine that runs on several machines use again."""

    name: str
    put_aside: Literal[False]


class Fleet(Document):
    """What runs where. `other_leases` are those of unknown machines; runs on several machines avoid those that are `put_aside`."""

    time: float
    machines: list[MachineAnswer]
    other_leases: list[Lease]
    engines: list[EngineAnswer]
    queue: QueueCounts
    put_aside: list[AsideAnswer]
    accounts: list[AccountUse]


class Services(Document):
    """What the installation consists of."""

    database: DatabaseFacts
    broker: Broker
    versions: list[Version]
    limits: dict[str, Any]


class System(Services, Fleet):
    """The installation. Times are seconds since the epoch by the database's clock, sizes bytes."""

    disk: Disk
    retention: Retention


def document(
    may_change: Callable[[str], bool],
    *,
    wait: bool = False,
    services_of: Callable[[Sequence[MachineAnswer]], Services] | None = None,
) -> System:
    """The installation.

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
        fleet = _fleet(session, figures.usage)
    return System(
        **vars(fleet),
        **vars((services_of or services)(fleet.machines)),
        disk=disk.document(figures, measured.freed, may_change),
        retention=disk.retention_document(figures),
    )


def services(listed: Sequence[MachineAnswer]) -> Services:
    """The services. Takes about a second if the broker is unreachable."""
    settings = get_settings()
    return Services(
        database=worker_services.database_facts(),
        broker=worker_services.broker_state(),
        versions=_versions(listed),
        limits={name: getattr(settings, name) for name in _LIMITS} | {"data_dir": str(settings.data_dir)},
    )


def _versions(listed: Sequence[MachineAnswer]) -> list[Version]:
    here = measurement.versions()
    reporting = [machine.versions for machine in listed if machine.state not in ("lost", "stopped")]
    return [
        Version(
            package=package,
            here=here.get(package),
            workers=sorted({versions[package] for versions in reporting if package in versions}),
        )
        for package in measurement.PACKAGES
    ]


def _fleet(session: Session, usage: Usage | None) -> Fleet:
    now, leases = database.now(session=session), _leases(session)
    reported = machines.listing(session=session)
    named = {device["name"] for machine in reported for device in machine.devices}
    return Fleet(
        time=now,
        machines=[_machine(machine, leases, now) for machine in reported],
        other_leases=[lease for lease in leases if lease.device not in named and JOB not in lease.device],
        engines=[_engine(report, now) for report in machines.engine_reports(session=session)],
        queue=_queue(session),
        put_aside=[AsideAnswer.model_validate(one) for one in machines.cordons(session=session)],
        accounts=_accounts(usage),
    )


def _accounts(usage: Usage | None) -> list[AccountUse]:
    """What each account uses and may use; `disk_bytes` as it was measured last."""
    own = sight.user()
    with database.read_everything() as whole:
        shown = [account for account in accounts.listing(session=whole) if own in (None, account.name)]
        uses = quotas.used(session=whole, owners=[account.name for account in shown])
    return [
        AccountUse(
            **account.model_dump(include=set(_ACCOUNT)),
            **vars(uses[account.name]),
            disk_bytes=usage.owners.get(account.name, 0) if usage else None,
        )
        for account in shown
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


def _engine(report: EngineReport, now: float) -> EngineAnswer:
    stored = vars(Capacity(**report.capacity)) | {"damaged": report.damaged, "damage": report.damage}
    return EngineAnswer(**stored, age_seconds=max(now - report.reported_at, 0.0))


def _machine(machine: Machine, leases: Sequence[Lease], now: float) -> MachineAnswer:
    held = {lease.device: lease for lease in leases}
    return MachineAnswer(
        **machine.shown(*Machine.model_fields.keys() - {"devices"}),
        age_seconds=max(now - machine.last_seen, 0.0),
        state=_state(machine, now),
        devices=[DeviceAnswer(**vars(Device(**device)), lease=held.get(device["name"])) for device in machine.devices],
    )


def _state(machine: Machine, now: float) -> State:
    """`ready`, `overloaded`, `draining` (its worker is stopping), `stopped` (it has ended), or `lost` (reports are missing)."""
    if not machines.is_fresh(machine, now):
        return "stopped" if machine.draining else "lost"
    if machine.draining:
        return "draining"
    return "overloaded" if machine.overload else "ready"


def _queue(session: Session) -> QueueCounts:
    with database.read_everything() as whole:
        queue = machines.queue(session=whole)
    oldest = None
    if queue.oldest:
        run_id, name, queued_at = queue.oldest
        if not sight.visible(session, [run_id]):
            run_id, name = f"{sight.HIDDEN}oldest", sight.ANOTHER_RUN
        oldest = Oldest(run_id=run_id, name=name, queued_at=queued_at)
    return QueueCounts(waiting=queue.waiting, running=queue.running, oldest=oldest)

"""What workers report about machines and engines, the runs that hold their devices, and machines that are cordoned.

Runs on several machines avoid a cordoned machine (on pages: put aside) after two failures, until a user takes it back. No run uses
a cordoned GPU after a failure of its hardware.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlmodel import Session, col, delete, func, select

from training.errors import Conflict, NotFound
from training.redaction import redact
from worker.settings import get_settings
from worker.store import database, served_models
from worker.store.tables import Cordon, DeviceLease, EngineReport, Machine, MachineFailure, Run, Status

STALE_SECONDS = 60.0
"""A machine that has not reported for this long is shown as lost, and can be removed."""
FAILURES = 2
"""So many within LATHE_PUT_ASIDE_HOURS put a machine aside."""
SERVING = "serving"
"""The phase in the lease of a served model, which has no run."""


class MachineNotFound(NotFound):
    """No machine has this name."""


class MachineReports(Conflict):
    """The machine's worker is running, so the machine cannot be removed."""


class NotCordoned(Conflict):
    """The machine is not put aside."""


@dataclass(frozen=True)
class Lease:
    """A device in use, with the run or served model that holds it, and when its lease was renewed and expires."""

    device: str
    run_id: str
    name: str
    owner: str
    phase: str
    step: int
    total_steps: int | None
    renewed_at: float | None
    expires_at: float | None


def report(*, session: Session, machine: Machine) -> None:
    """Stores a report, with the database's time; keeps when the machine was first seen."""
    values = machine.model_dump(exclude={"first_seen", "last_seen"})
    now = database.clock()
    statement = database.insert(session, Machine).values(**values, first_seen=now, last_seen=now)
    changed: dict[str, Any] = {name: value for name, value in values.items() if name != "name"}
    session.exec(statement.on_conflict_do_update(index_elements=["name"], set_=changed | {"last_seen": now}))


def leave(*, session: Session, name: str, worker: str) -> None:
    """Marks the machine as draining, unless another worker reports it by now."""
    mine = col(Machine.name) == name, col(Machine.worker) == worker
    session.exec(sqlalchemy.update(Machine).where(*mine).values(draining=True, last_seen=database.clock()))


def listing(*, session: Session) -> list[Machine]:
    """All machines, by name."""
    return list(session.exec(select(Machine).order_by(col(Machine.name))))


def reporting(*, session: Session) -> list[Machine]:
    """The machines that have reported lately, by name."""
    now = database.now(session=session)
    return [machine for machine in listing(session=session) if is_fresh(machine, now)]


def usable_devices(machine: Machine) -> list[str]:
    """The names of its devices that have no problem."""
    return [str(device["name"]) for device in machine.devices if not device.get("problem")]


def leases(*, session: Session) -> list[Lease]:
    """The devices in use, by name, with their runs or served models."""
    run: Any = Run
    columns = run.id, run.name, run.owner, run.phase, run.step, run.total_steps
    times = run.expires_at - get_settings().lease_seconds, run.expires_at
    joined = sqlalchemy.select(col(DeviceLease.device), *columns, *times).join(Run, run.id == DeviceLease.run_id)
    rows = session.connection().execute(joined)
    served = [
        Lease(device, one.id, f"served model {', '.join(one.models)}", one.owner, SERVING, 0, None, None, None)
        for device, one in served_models.on_devices(session=session).items()
    ]
    return sorted([*(Lease(*row) for row in rows), *served], key=lambda lease: lease.device)


def remove(*, session: Session, name: str) -> None:
    """Removes a machine that no longer reports. It reappears if its worker starts again.

    Raises:
        MachineNotFound: there is none of this name.
        MachineReports: its worker has reported within the last minute.
    """
    machine = session.get(Machine, name)
    if machine is None:
        raise MachineNotFound("machine", name, "does not exist.", "The page System lists all machines.")
    if is_fresh(machine, database.now(session=session)) and not machine.draining:
        message = "has a running worker, which would report it again."
        raise MachineReports("machine", name, message, "Stop its worker first.")
    session.exec(delete(Machine).where(col(Machine.name) == name))


def is_fresh(machine: Machine, now: float) -> bool:
    """True if the machine has reported lately; `now` is by the database's clock."""
    return now - machine.last_seen <= STALE_SECONDS


def add_failure(*, session: Session, host: str, run_id: str, attempt: int, reason: str, within_seconds: float) -> int:
    """Stores a failure of the machine; returns how many it had within the last `within_seconds`, this one included."""
    values = {"host": host, "run_id": run_id, "attempt": attempt, "reason": redact(reason)}
    statement = database.insert(session, MachineFailure).values(**values, failed_at=database.clock())
    session.exec(statement.on_conflict_do_nothing())
    recent = MachineFailure.host == host, col(MachineFailure.failed_at) > database.clock() - within_seconds
    return session.exec(select(func.count()).select_from(MachineFailure).where(*recent)).one()


def cordon(*, session: Session, host: str, reason: str) -> None:
    """Puts a machine aside, unless it is."""
    values = {"host": host, "reason": redact(reason), "since": database.clock()}
    session.exec(database.insert(session, Cordon).values(**values).on_conflict_do_nothing())


def uncordon(*, session: Session, host: str) -> None:
    """Takes a machine back and forgets its failures. Raises NotCordoned if it is not put aside."""
    if session.get(Cordon, host) is None:
        known = ", ".join(sorted(cordoned(session=session))) or "none"
        raise NotCordoned("machine", host, "is not put aside.", f"Machines that are put aside: {known}.")
    for table in (Cordon, MachineFailure):
        session.exec(delete(table).where(col(table.host) == host))


def cordons(*, session: Session) -> list[Cordon]:
    """The machines that are put aside, by name."""
    return list(session.exec(select(Cordon).order_by(col(Cordon.host))))


def cordoned(*, session: Session) -> set[str]:
    """The names of the machines that are put aside."""
    return set(session.exec(select(Cordon.host)))


def report_engine(*, session: Session, name: str, capacity: dict[str, Any]) -> None:
    """Stores what an engine has now, with the database's time."""
    now = database.clock()
    statement = database.insert(session, EngineReport).values(name=name, reported_at=now, capacity=capacity)
    changed: dict[str, Any] = {"reported_at": now, "capacity": capacity}
    session.exec(statement.on_conflict_do_update(index_elements=["name"], set_=changed))


def engine_reports(*, session: Session) -> list[EngineReport]:
    """The latest report about each engine, by name."""
    return list(session.exec(select(EngineReport).order_by(col(EngineReport.name))))


def engine_problem(*, session: Session, name: str) -> str:
    """Why the engine does not answer, by its latest report; empty if it does."""
    latest = session.get(EngineReport, name)
    return str(latest.capacity.get("problem", "")) if latest else ""


@dataclass(frozen=True)
class Queue:
    """The queue: numbers of runs, and the run that has waited longest."""

    waiting: int
    running: int
    oldest: tuple[str, str, float] | None
    """Id, name and `queued_at`."""


def queue(*, session: Session) -> Queue:
    """The state of the queue, without loading its runs."""
    counted = session.exec(select(Run.status, sqlalchemy.func.count()).group_by(col(Run.status))).all()
    numbers = {Status(status): number for status, number in counted}
    first = select(Run.id, Run.name, Run.queued_at).where(Run.status == Status.QUEUED)
    oldest = session.exec(first.order_by(col(Run.queued_at), col(Run.id)).limit(1)).first()
    waiting, running = (numbers.get(status, 0) for status in (Status.QUEUED, Status.RUNNING))
    return Queue(waiting, running, (oldest[0], oldest[1], oldest[2]) if oldest else None)

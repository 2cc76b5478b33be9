"""What workers report about their machines, and the runs that hold their devices."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlmodel import Session, col, delete, select

from training.errors import Conflict, NotFound
from worker.store import database
from worker.store.tables import DeviceLease, Machine, Run, ServedModel, Status

STALE_SECONDS = 60.0
"""A machine that has not reported for this long is shown as lost, and can be removed."""


SERVING = "serving"
"""The phase in the lease of a served model, which has no run."""


class MachineNotFound(NotFound):
    """No machine has this name."""


class MachineReports(Conflict):
    """The machine's worker is running, so the machine cannot be removed."""


@dataclass(frozen=True)
class Lease:
    """A device in use, with the run that holds it, or the served model (its phase is SERVING). Times are seconds by the
    database's clock.
    """

    device: str
    run_id: str
    name: str
    owner: str
    phase: str
    step: int
    total_steps: int | None
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


def usable_devices(machine: Machine) -> list[str]:
    """The names of its devices that have no problem."""
    return [str(device["name"]) for device in machine.devices if not device.get("problem")]


def leases(*, session: Session) -> list[Lease]:
    """The devices in use, by name, with their runs or served models."""
    run: Any = Run
    columns = run.id, run.name, run.owner, run.phase, run.step, run.total_steps, run.expires_at
    joined = sqlalchemy.select(col(DeviceLease.device), *columns).join(Run, run.id == DeviceLease.run_id)
    rows = session.connection().execute(joined.order_by(col(DeviceLease.device)))
    held = [Lease(*row) for row in rows] + _served(session)
    return sorted(held, key=lambda lease: lease.device)


def _served(session: Session) -> list[Lease]:
    joined = select(DeviceLease.device, ServedModel).join(ServedModel, col(ServedModel.id) == DeviceLease.served_id)
    return [
        Lease(device, served.id, f"served model {', '.join(served.models)}", served.owner, SERVING, 0, None, None)
        for device, served in session.exec(joined)
    ]


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

"""Machines that are put aside: runs on several machines avoid them after two failures, until a user takes them back. GPUs too:
no run uses them after a failure of their hardware."""

from sqlmodel import Session, col, delete, func, select

from training.errors import Conflict
from training.redaction import redact
from worker.store import database
from worker.store.tables import MachineAside, MachineFailure

FAILURES = 2
"""So many within LATHE_PUT_ASIDE_HOURS put a machine aside."""


class NotAside(Conflict):
    """The machine is not put aside."""


def add_failure(*, session: Session, host: str, run_id: str, attempt: int, reason: str, within_seconds: float) -> int:
    """Stores a failure of the machine; returns how many it had within the last `within_seconds`, this one included."""
    values = {"host": host, "run_id": run_id, "attempt": attempt, "reason": redact(reason)}
    statement = database.insert(session, MachineFailure).values(**values, failed_at=database.clock())
    session.exec(statement.on_conflict_do_nothing())
    recent = MachineFailure.host == host, col(MachineFailure.failed_at) > database.clock() - within_seconds
    return session.exec(select(func.count()).select_from(MachineFailure).where(*recent)).one()


def put_aside(*, session: Session, host: str, reason: str) -> None:
    """Puts a machine aside, unless it is."""
    values = {"host": host, "reason": redact(reason), "since": database.clock()}
    session.exec(database.insert(session, MachineAside).values(**values).on_conflict_do_nothing())


def use(*, session: Session, host: str) -> None:
    """Takes a machine back and forgets its failures.

    Raises:
        NotAside: it is not put aside.
    """
    if session.get(MachineAside, host) is None:
        known = ", ".join(sorted(hosts(session=session))) or "none"
        raise NotAside("machine", host, "is not put aside.", f"Machines that are put aside: {known}.")
    for table in (MachineAside, MachineFailure):
        session.exec(delete(table).where(col(table.host) == host))


def listing(*, session: Session) -> list[MachineAside]:
    """The machines that are put aside, by name."""
    return list(session.exec(select(MachineAside).order_by(col(MachineAside.host))))


def hosts(*, session: Session) -> set[str]:
    """The names of the machines that are put aside."""
    return set(session.exec(select(MachineAside.host)))

"""What the engines with machines of their own have, as workers report it."""

from typing import Any

from sqlmodel import Session, col, select

from worker.store import database
from worker.store.tables import EngineReport


def report(*, session: Session, name: str, capacity: dict[str, Any]) -> None:
    """Stores what an engine has now, with the database's time."""
    now = database.clock()
    statement = database.insert(session, EngineReport).values(name=name, reported_at=now, capacity=capacity)
    changed: dict[str, Any] = {"reported_at": now, "capacity": capacity}
    session.exec(statement.on_conflict_do_update(index_elements=["name"], set_=changed))


def listing(*, session: Session) -> list[EngineReport]:
    """The latest report about each engine, by name."""
    return list(session.exec(select(EngineReport).order_by(col(EngineReport.name))))


def problem(*, session: Session, name: str) -> str:
    """Why the engine does not answer, by its latest report; empty if it does."""
    latest = session.get(EngineReport, name)
    return str(latest.capacity.get("problem", "")) if latest else ""

"""The further machines of running attempts: placed by the supervisor, claimed by a worker's process on each, held by a lease.

A row whose attempt is no longer the run's current one tells its holder to end. Until it has ended, or its lease has expired, the
run cannot be claimed again (`unfinished`) and its devices are not free (`devices_in_use`).
"""

from typing import Any

from sqlalchemy import ColumnElement, exists
from sqlmodel import Session, col, select

from training.redaction import redact
from worker.store import database
from worker.store.tables import RunNode
from worker.store.tables.row import whole
from worker.store.work import NODE

STOP, KILL = "stop", "kill"
"""Requests: the ranks save and exit; the ranks are killed."""


def place(*, session: Session, run_id: str, attempt: int, devices_of: dict[str, list[str]]) -> None:
    """Stores the further machines of an attempt, by host, in their order."""
    for rank, (host, devices) in enumerate(devices_of.items(), 1):
        session.add(RunNode(run_id=run_id, attempt=attempt, rank=rank, host=host, devices=devices))


def of_attempt(*, session: Session, run_id: str, attempt: int) -> list[RunNode]:
    """The further machines of an attempt, by rank."""
    statement = select(RunNode).where(RunNode.run_id == run_id, RunNode.attempt == attempt)
    return list(session.exec(statement.order_by(col(RunNode.rank))))


def unclaimed(*, session: Session, host: str) -> list[RunNode]:
    """The parts of current attempts that a worker on `host` should start."""
    unclaimed = col(RunNode.holder).is_(None), RunNode.request == "", NODE.held
    return list(whole(session.exec(select(RunNode).where(RunNode.host == host, *unclaimed))))


def held_on(*, session: Session, host: str) -> list[RunNode]:
    """The parts on `host` that have a holder and have not ended."""
    held = col(RunNode.holder).is_not(None), col(RunNode.ended_at).is_(None)
    return list(session.exec(select(RunNode).where(RunNode.host == host, *held)))


def claim(*, session: Session, node: RunNode, owner: str, lease_seconds: float) -> bool:
    """Makes `owner` the holder; False if another process was faster, or the attempt has ended."""
    free = *NODE.current(node.key), col(RunNode.holder).is_(None)
    return NODE.claim(session, *free, holder=owner, lease_seconds=lease_seconds) is not None


def ask(*, session: Session, run_id: str, attempt: int, request: str) -> None:
    """Asks all holders of the attempt's parts for something; KILL is not taken back."""
    mine = col(RunNode.run_id) == run_id, col(RunNode.attempt) == attempt, col(RunNode.request) != KILL
    database.change_all(session, RunNode, *mine, request=request)


def end(*, session: Session, node: RunNode, exit_code: int | None, problem: str = "") -> None:
    """Stores that nothing of the part trains any more."""
    values = {"ended_at": database.clock(), "exit_code": exit_code, "problem": redact(problem)}
    NODE.change(session, *NODE.named(node.key), col(RunNode.ended_at).is_(None), **values)


def unfinished(run_id: Any) -> ColumnElement[bool]:
    """True if some part of the run may still train somewhere."""
    alive = col(RunNode.ended_at).is_(None), col(RunNode.expires_at) > database.clock()
    return exists().where(col(RunNode.run_id) == run_id, *alive)


def devices_in_use(*, session: Session) -> set[str]:
    """The devices of parts that may still train although their attempt has ended."""
    alive = col(RunNode.ended_at).is_(None), col(RunNode.expires_at) > database.clock()
    return {device for node in session.exec(select(RunNode).where(*alive)) for device in node.devices}


def lost_hosts(*, session: Session) -> set[str]:
    """The hosts that lost contact while they trained: their worker, once it is back, says that the part has ended."""
    lost = col(RunNode.ended_at).is_(None), col(RunNode.expires_at) < database.clock()
    return set(session.exec(select(RunNode.host).where(*lost)))

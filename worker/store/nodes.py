"""The further machines of running attempts: placed by the supervisor, claimed by a worker's process on each, held by a lease.

A row whose attempt is no longer the run's current one tells its holder to end. Until it has ended, or its lease has expired, the
run cannot be claimed again (`unfinished`) and its devices are not free (`devices_in_use`).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, update
from sqlmodel import Session, col, select

from training.redaction import redact
from worker.store import database
from worker.store.tables import Run, RunNode, Status

STOP, KILL = "stop", "kill"
"""Requests: the ranks save and exit; the ranks are killed."""


class NodeLost(RuntimeError):  # noqa: N818
    """The attempt has ended or has another holder on this machine: kill its ranks here."""


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
    open_ = col(RunNode.holder).is_(None), col(RunNode.ended_at).is_(None), RunNode.request == ""
    return list(session.exec(select(RunNode).where(RunNode.host == host, *open_, _current())))


def held_on(*, session: Session, host: str) -> list[RunNode]:
    """The parts on `host` that have a holder and have not ended."""
    held = col(RunNode.holder).is_not(None), col(RunNode.ended_at).is_(None)
    return list(session.exec(select(RunNode).where(RunNode.host == host, *held)))


def claim(*, session: Session, node: RunNode, owner: str, lease_seconds: float) -> bool:
    """Makes `owner` the holder; False if another process was faster, or the attempt has ended."""
    free = col(RunNode.holder).is_(None), col(RunNode.ended_at).is_(None), _current()
    values = {"holder": owner, "expires_at": database.clock() + lease_seconds}
    return _change(session, node.key, *free, **values)


def renew(*, session: Session, node: RunNode, owner: str, lease_seconds: float) -> str:
    """Extends the lease and returns the request: STOP, KILL or empty.

    Raises:
        NodeLost: `owner` no longer holds it, or the attempt has ended.
    """
    mine = col(RunNode.holder) == owner, col(RunNode.ended_at).is_(None), _current()
    if not _change(session, node.key, *mine, expires_at=database.clock() + lease_seconds):
        raise NodeLost(f"Run {node.run_id}, attempt {node.attempt}: machine {node.rank} is no longer held by {owner}.")
    return session.exec(select(RunNode.request).where(*_is(node.key))).one()


def ask(*, session: Session, run_id: str, attempt: int, request: str) -> None:
    """Asks all holders of the attempt's parts for something; KILL is not taken back."""
    mine = col(RunNode.run_id) == run_id, col(RunNode.attempt) == attempt, col(RunNode.request) != KILL
    session.exec(update(RunNode).where(*mine).values(request=request))


def end(*, session: Session, node: RunNode, exit_code: int | None, problem: str = "") -> None:
    """Stores that nothing of the part trains any more."""
    values = {"ended_at": database.clock(), "exit_code": exit_code, "problem": redact(problem)}
    _change(session, node.key, col(RunNode.ended_at).is_(None), **values)


def unfinished(run_id: Any) -> ColumnElement[bool]:
    """True if some part of the run may still train somewhere."""
    alive = col(RunNode.ended_at).is_(None), col(RunNode.expires_at) > database.clock()
    return exists().where(col(RunNode.run_id) == run_id, *alive)


def devices_in_use(*, session: Session) -> set[str]:
    """The devices of parts that may still train although their attempt has ended."""
    alive = col(RunNode.ended_at).is_(None), col(RunNode.expires_at) > database.clock()
    return _flat(session.exec(select(RunNode.devices).where(*alive)))


def lost_hosts(*, session: Session) -> set[str]:
    """The hosts that lost contact while they trained: their worker, once it is back, says that the part has ended."""
    lost = col(RunNode.ended_at).is_(None), col(RunNode.expires_at) < database.clock()
    return set(session.exec(select(RunNode.host).where(*lost)))


def silent(nodes: Iterable[RunNode], now: float) -> list[RunNode]:
    """Those whose lease has expired before `now`, a time of the database's clock."""
    return [node for node in nodes if node.ended_at is None and node.expires_at is not None and node.expires_at < now]


def _flat(lists: Iterable[Sequence[str]]) -> set[str]:
    return {device for devices in lists for device in devices}


def _is(key: tuple[Any, Any, Any]) -> tuple[ColumnElement[bool], ...]:
    columns = col(RunNode.run_id), col(RunNode.attempt), col(RunNode.rank)
    return tuple(column == value for column, value in zip(columns, key, strict=True))


def _current() -> ColumnElement[bool]:
    """True if the row's attempt is the one that trains now."""
    same = and_(col(Run.id) == RunNode.run_id, col(Run.attempt) == RunNode.attempt)
    return exists().where(same, col(Run.status) == Status.RUNNING)


def _change(session: Session, key: tuple[Any, Any, Any], *condition: ColumnElement[bool], **values: Any) -> bool:
    session.flush()
    statement = update(RunNode).where(*_is(key), *condition).values(**values).returning(col(RunNode.rank))
    options = {"synchronize_session": False}
    return session.exec(statement, execution_options=options).first() is not None

"""Work that a process holds by a lease: runs, their parts on further machines, evaluations, builds and served models.

Work has one holder at a time. Each change of holder is one conditional UPDATE, so that only one of several concurrent tries
succeeds. `attempt` counts the claims; holders of older attempts are refused. A lease ends at `expires_at`, by the database's
clock. The devices of a claim are leased with it, both or neither, and freed when the work ends or returns to the queue.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, and_, exists
from sqlmodel import Session, col, delete, select

from training.redaction import redact_all
from worker.store import database, quotas
from worker.store.tables import Build, DeviceLease, Evaluation, Run, RunNode, ServedModel, ServedState, Status
from worker.store.tables.held import Held
from worker.store.tables.queued import QueuedWork

T = TypeVar("T", bound=Held)
Q = TypeVar("Q", bound=QueuedWork)
Key = tuple[Any, ...]
"""Names a row and its attempt."""

_SUBJECTS = ("run_id", "evaluation_id", "served_id")


class LeaseLost(RuntimeError):  # noqa: N818
    """The caller no longer holds the work: another process does, or it has ended. Stop what you do for it."""


class Kind(Generic[T]):
    """The work whose rows `table` has.

    `key` names a row and its attempt. `held` is true while the attempt may have a holder. `subject` names the row in device leases.
    """

    def __init__(
        self,
        table: type[T],
        title: str,
        key: tuple[Any, ...],
        held: ColumnElement[bool],
        subject: Callable[[Any], dict[str, Any]],
    ) -> None:
        self._table: Any = table
        self._title, self._key, self.held, self._subject = title, key, held, subject

    def key_of(self, row: T) -> Key:
        """The row's key, with its attempt."""
        return tuple(getattr(row, column.key) for column in self._key)

    def title(self, key: Key) -> str:
        """The attempt in words."""
        return self._title.format(*key)

    def named(self, key: Key) -> tuple[ColumnElement[bool], ...]:
        """True for the row, if its attempt is this one."""
        return tuple(column == value for column, value in zip(self._key, key, strict=True))

    def current(self, key: Key) -> tuple[ColumnElement[bool], ...]:
        """True for the row, if this attempt may have a holder."""
        return (*self.named(key), self.held)

    def change(self, session: Session, *condition: ColumnElement[bool], **values: Any) -> T | None:
        """Runs one conditional UPDATE; returns the new row, or None if the condition does not hold."""
        return database.change(session, self._table, *condition, **values)

    def claim(
        self,
        session: Session,
        *condition: ColumnElement[bool],
        holder: str,
        lease_seconds: float,
        leased: Iterable[str] = (),
        counted: bool = True,
        **values: Any,
    ) -> T | None:
        """Makes `holder` (host:pid:start) the first holder of a row, with the devices in `leased`, both or neither.

        None if the condition does not hold, the row is damaged, its owner may use no more devices (if they are `counted`), or one
        of them is in use.
        """
        with session.begin_nested() as savepoint:
            row = self.change(session, *condition, **_lease(holder, lease_seconds), **values)
            if row is None or row.obstacle() or not self._take(session, row, sorted(leased), counted):
                savepoint.rollback()
                return None
        return row

    def adopt(self, session: Session, key: Key, *, holder: str, lease_seconds: float, **values: Any) -> bool:
        """Hands the attempt over to `holder`. False if it is no longer the current one."""
        return self.change(session, *self.current(key), **_lease(holder, lease_seconds), **values) is not None

    def check(self, session: Session, key: Key, *, holder: str) -> T:
        """The row, if `holder` holds this attempt. Raises LeaseLost if it does not."""
        row = session.exec(select(self._table).where(*self.current(key), self._table.holder == holder)).one_or_none()
        return self._own(row, key, holder)

    def renew(self, session: Session, key: Key, *, holder: str, lease_seconds: float, **values: Any) -> T:
        """Extends the lease to `lease_seconds` from now, stores values, and returns the row with what is requested.

        Raises:
            LeaseLost: `holder` does not hold this attempt.
        """
        mine = *self.current(key), self._table.holder == holder
        return self._own(self.change(session, *mine, **_lease(holder, lease_seconds), **values), key, holder)

    def seize(self, session: Session, row: T, *, holder: str, lease_seconds: float, expired: bool) -> T | None:
        """Takes lost work from its holder, whose renewals then fail; `holder` ends what is left of it and requeues it.

        None if it has another holder by now, or, with `expired`, if its holder has renewed in time.
        """
        condition = [*self.current(self.key_of(row)), self._table.holder == row.holder]
        if expired:
            condition.append(self._expired)
        return self.change(session, *condition, **_lease(holder, lease_seconds))

    def end(self, session: Session, key: Key, **values: Any) -> T | None:
        """Ends the attempt or returns it to the queue, as `values` say, and frees its devices. None if it is not current."""
        row = self.change(session, *self.current(key), **{"holder": None, "expires_at": None} | values)
        if row is not None:
            session.exec(delete(DeviceLease).where(*self._leased(row)))
        return row

    def rows(self, session: Session) -> list[tuple[T, bool]]:
        """The rows with a holder, newest first, each with whether its lease has expired."""
        rows = select(self._table, self._expired).where(self.held, self._table.holder.is_not(None))
        newest_first = rows.order_by(*(col(column).desc() for column in self._key))
        return [(row, bool(expired)) for row, expired in session.exec(newest_first)]

    @property
    def _expired(self) -> ColumnElement[bool]:
        expired: ColumnElement[bool] = self._table.expires_at < database.clock()
        return expired

    def _own(self, row: T | None, key: Key, holder: str) -> T:
        if row is None:
            raise LeaseLost(f"{self.title(key)} is no longer held by {holder}.")
        return row

    def _take(self, session: Session, row: Any, devices: list[str], counted: bool) -> bool:
        """Leases the devices; False if one is in use. They are sorted, so that two claims cannot deadlock."""
        if not devices:
            return True
        if counted and not quotas.keeps_devices(session=session, owner=row.owner):
            return False
        shared = self._subject(row) | {"attempt": getattr(row, "attempt", 0)}
        rows = [{"device": device} | shared for device in devices]
        statement = database.insert(session, DeviceLease).values(rows).on_conflict_do_nothing()
        return len(session.exec(statement.returning(col(DeviceLease.device))).all()) == len(rows)

    def _leased(self, row: T) -> list[ColumnElement[bool]]:
        subject = self._subject(row)
        return [getattr(DeviceLease, name) == subject.get(name) for name in _SUBJECTS]


class QueuedKind(Kind[Q]):
    """Work on an ended run that waits for a worker. `noun` is what one is called."""

    def __init__(self, table: type[Q], key: tuple[Any, ...], subject: Callable[[Any], dict[str, Any]]) -> None:
        self.noun = table.__name__.lower()
        title = f"{table.__name__} {'{} ' * (len(key) - 1)}".strip() + ", attempt {},"
        super().__init__(table, title, key, col(table.status) == Status.RUNNING, subject)
        names = ("device", "stopping", "phase", "done", "total")
        fields = table.model_fields
        self._free = {name: fields[name].default for name in names if name in fields}

    def take(self, session: Session, *row: ColumnElement[bool], **values: Any) -> Q | None:
        """Claims a queued row as `claim` does."""
        taken = {"status": Status.RUNNING, "attempt": self._table.attempt + 1, "error": None, "phase": "starting"}
        taken |= {"started_at": database.clock()}
        return self.claim(session, *row, self._table.status == Status.QUEUED, **taken | values)

    def finish(
        self, session: Session, key: Key, status: Status, *, error: dict[str, Any] | None = None, **values: Any
    ) -> bool:
        """Ends the attempt and frees its device. False if it is not current."""
        values |= {"status": status, "finished_at": database.clock(), "error": redact_all(error) if error else None}
        return self.end(session, key, **self._free | values) is not None

    def requeue(self, session: Session, row: Q, reason: str) -> bool:
        """Returns lost work to the queue; stopping work is stopped. False if the attempt is not current."""
        stopped = {"status": Status.STOPPED, "finished_at": database.clock()}
        after = stopped if row.stopping else {"status": Status.QUEUED, "reason": reason}
        return self.end(session, self.key_of(row), **self._free | after) is not None

    def request_stop(self, session: Session, row: Q) -> bool:
        """Stops queued work, and asks a running holder to stop. False if it has ended."""
        same, status = self.named(self.key_of(row))[:-1], self._table.status
        stopped = {"status": Status.STOPPED, "finished_at": database.clock()}
        return bool(
            self.change(session, *same, status == Status.QUEUED, **stopped)
            or self.change(session, *same, status == Status.RUNNING, stopping=True)
        )


def _lease(holder: str, seconds: float) -> dict[str, Any]:
    return {"holder": holder, "expires_at": database.clock() + seconds}


RUN = Kind(
    Run,
    "Run {}, attempt {},",
    (Run.id, Run.attempt),
    col(Run.status) == Status.RUNNING,
    lambda run: {"run_id": run.id},
)
EVALUATION = QueuedKind(
    Evaluation,
    (Evaluation.id, Evaluation.attempt),
    lambda item: {"run_id": item.run_id, "evaluation_id": item.id},
)
BUILD = QueuedKind(Build, (Build.id, Build.attempt), lambda item: {"run_id": item.run_id})
"""It uses no device."""
NODE = Kind(
    RunNode,
    "Run {}, attempt {}: machine {}",
    (RunNode.run_id, RunNode.attempt, RunNode.rank),
    and_(
        col(RunNode.ended_at).is_(None),
        exists().where(
            col(Run.id) == RunNode.run_id, col(Run.attempt) == RunNode.attempt, col(Run.status) == Status.RUNNING
        ),
    ),
    lambda node: {"run_id": node.run_id},
)
"""Its devices are those of its run, leased with it."""
SERVED = Kind(
    ServedModel,
    "Served model {}",
    (ServedModel.id,),
    col(ServedModel.state).in_((ServedState.WAITING, ServedState.STARTING, ServedState.READY)),
    lambda served: {"served_id": served.id},
)
"""It is claimed once, and not again."""

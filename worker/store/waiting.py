"""The queue's order: which waiting run starts next, and how users change that.

Runs of a higher priority start first, then those with a smaller `position`: the time at which they were queued, unless they were
moved. A held run keeps its place and does not start; while the queue is paused, no run starts.
"""

from collections.abc import Iterator

from sqlalchemy import ColumnElement, update
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from training.errors import Conflict
from worker.choices import Priority
from worker.store import database, history, quotas, runs
from worker.store.tables import QueueState, Run, Status

_READ = 50  # runs that are read from the database together

HIGH, NORMAL, LOW = 1, 0, -1
PRIORITIES = {Priority.HIGH: HIGH, Priority.NORMAL: NORMAL, Priority.LOW: LOW}


class NotWaiting(Conflict):
    """The run is not queued, so its place in the queue cannot change."""


def waiting(*, session: Session) -> list[Run]:
    """The queued runs in the order in which they start; held ones keep their place."""
    return list(session.exec(_in_order(col(Run.status) == Status.QUEUED)))


def startable(*, session: Session) -> list[Run]:
    """The waiting runs that may start now: none while the queue is paused, no held or damaged ones, and none whose owner may not
    use the devices (worker/store/quotas.py).
    """
    return list(startable_one_by_one(session=session))


def startable_one_by_one(*, session: Session, on_cpu: bool | None = None) -> Iterator[Run]:
    """Yields the runs of `startable`, read as they are needed: the queue may be long, and one of the first starts.

    `on_cpu` tells whether they would start on CPUs; by default, what workers report decides.
    """
    if paused(session=session):
        return
    allowed = quotas.DeviceQuotas.read(session, on_cpu=on_cpu)
    with session.exec(_in_order(counts_as_waiting()).execution_options(yield_per=_READ)) as found:
        yield from (run for run in found if _can_start(run) and allowed.allow(run))


def _can_start(run: Run) -> bool:
    """False for a damaged run, and for one whose machines cannot be chosen: today's bounds refuse its configuration. Such a run on
    one machine is refused when it is claimed; all that wait are not validated here, because they may be many."""
    return not run.damaged and (run.num_machines == 1 or not run.obstacle())


def _in_order(chosen: ColumnElement[bool]) -> SelectOfScalar[Run]:
    return select(Run).where(chosen).order_by(col(Run.priority).desc(), col(Run.position), col(Run.id))


def paused(*, session: Session) -> QueueState | None:
    """Since when and by whom the queue is paused, or None."""
    state = session.get(QueueState, 1)
    return state if state is not None and state.paused_at is not None else None


def pause(*, session: Session, by: str) -> None:
    """Starts no further run until `unpause`. Running runs continue."""
    if paused(session=session) is None:
        session.merge(QueueState(id=1, paused_at=database.now(session=session), paused_by=by))


def unpause(*, session: Session) -> None:
    """Lets waiting runs start again."""
    session.merge(QueueState(id=1, paused_at=None, paused_by=""))


def hold(*, session: Session, run_id: str, held: bool) -> Run:
    """Holds a queued run, or releases it. Raises NotWaiting if it is not queued."""
    run = _waiting_run(session, run_id)
    if run.held != held:
        run.held = held
        if not held and run.at_rung:  # released by a user, not by its sweep: it trains to its last step
            run.pause_at = None
        _note(session, run, "Held: it does not start until it is released." if held else "Released.")
    session.flush()
    return run


def set_priority(*, session: Session, run_id: str, priority: int) -> Run:
    """Sets the priority of a queued run; runs of a higher priority start first.

    Raises:
        NotWaiting: it is not queued.
    """
    run = _waiting_run(session, run_id)
    if run.priority != priority:
        run.priority = priority
        _note(session, run, f"Priority set to {priority_word(priority)}.")
    session.flush()
    return run


def move(*, session: Session, run_id: str, before: str | None) -> list[Run]:
    """Moves a queued run before another one, or to the end with None, and gives it the priority of that place.

    Returns:
        The runs that it passed towards the front, which start later now.

    Raises:
        NotWaiting: one of the two is not queued.
    """
    run = _waiting_run(session, run_id)
    order = waiting(session=session)
    others = [other for other in order if other.id != run.id]
    target = others.index(_waiting_run(session, before)) if before and before != run.id else len(others)
    if before == run.id or not others:
        return []
    passed = others[target : order.index(run)]
    run.priority = others[target].priority if target < len(others) else others[-1].priority
    alike = [other for other in others if other.priority == run.priority]
    earlier = [other for other in others[:target] if other.priority == run.priority]
    run.position = _between(session, run, earlier, alike[len(earlier) :])
    _note(session, run, f"Moved to place {target + 1} of {len(order)} in the queue.")
    session.flush()
    return passed


def priority_word(priority: int) -> str:
    """The priority as pages and commands name it."""
    return next((word for word, value in PRIORITIES.items() if value == priority), str(priority))


def counts_as_waiting() -> ColumnElement[bool]:
    """True for queued runs that may start: a claim checks it in its UPDATE."""
    return (col(Run.status) == Status.QUEUED) & col(Run.held).is_(False)


def _between(session: Session, run: Run, earlier: list[Run], later: list[Run]) -> float:
    """A position after `earlier` and before `later`, both in order."""
    if not earlier:
        return later[0].position - 1 if later else run.queued_at
    if not later:
        return earlier[-1].position + 1
    low, high = earlier[-1].position, later[0].position
    middle = (low + high) / 2
    if low < middle < high:
        return middle
    # No number lies between the two: make room by moving everything that starts earlier.
    before = col(Run.id).in_([other.id for other in earlier])
    session.exec(update(Run).where(before).values(position=Run.position - 1))
    for other in earlier:
        session.refresh(other)
    return high - 0.5


def _waiting_run(session: Session, run_id: str) -> Run:
    run = runs.locked(session=session, run_id=run_id)
    if run.status is not Status.QUEUED:
        raise NotWaiting("run", run.id, f"is {run.status.value}.", "Only queued runs have a place in the queue.")
    return run


def _note(session: Session, run: Run, message: str) -> None:
    history.note(session=session, run=run, message=message, kind="queue")

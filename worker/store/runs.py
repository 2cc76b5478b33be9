"""Runs: create, find, list, stop, resume, delete. worker/store/claims.py takes them through the queue.

Every function takes a session, which the caller commits: `with database.write() as session: ...`.
"""

import secrets
import shutil
import time
from typing import Any, cast

from sqlalchemy import ColumnElement, func, or_, update
from sqlmodel import Session, col, select
from sqlmodel import delete as delete_from

from training.config.fields import in_words
from training.config.run_config import RunConfig
from training.errors import UserError
from worker.settings import get_settings
from worker.store import database, history
from worker.store.tables import LOCAL, Attempt, Dataset, Request, Run, Status

ID_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # no i, l, o, u: they are misread
SHORTEST_PREFIX = 4
TIMES = ("queued_at", "created_at", "started_at", "finished_at")
SORTABLE_COLUMNS = (*TIMES, "name", "owner", "status", "step", "final_loss", "best_loss", "peak_bytes")


class RunNotFound(UserError):  # noqa: N818
    """No run has this id, or several begin with it."""


class NotRunning(UserError):  # noqa: N818
    """The run has ended and cannot be stopped."""


class NotResumable(UserError):  # noqa: N818
    """The run is neither failed nor stopped."""


class NotEnded(UserError):  # noqa: N818
    """The run is queued or running, so it cannot be deleted."""


def create(
    *,
    session: Session,
    config: RunConfig,
    dataset_id: str | None,
    fingerprints: dict[str, str] | None = None,
    parent_id: str | None = None,
    name: str = "",
    owner: str = LOCAL,
) -> Run:
    """Queues a new run. `name` is its display name; if empty, the configuration's title."""
    now = database.now(session=session)
    run = Run(
        id=new_id(now),
        name=(name or config.title)[:200],
        config=config.model_dump(mode="json"),
        dataset_id=dataset_id,
        fingerprints=fingerprints or {},
        parent_id=parent_id,
        owner=owner,
        created_at=now,
        queued_at=now,
    )
    session.add(run)
    session.flush()
    return run


def new_id(now: float | None = None) -> str:
    """12 letters and digits: the time in 1/256 s (8, so that ids sort by it) and random bits (4)."""
    number = int((time.time() if now is None else now) * 256) % 2**40 << 20 | secrets.randbits(20)
    return "".join(ID_LETTERS[number >> shift & 31] for shift in range(55, -1, -5))


def get(*, session: Session, run_id: str) -> Run:
    """The run with this id, or the only one whose id begins with it (4 characters or more).

    Raises:
        RunNotFound: there is none, or several.
    """
    possible = run_id.isascii() and run_id.isalnum()
    found = session.get(Run, run_id) if possible else None
    if found is not None:
        return found
    matches: list[Run] = []
    if possible and len(run_id) >= SHORTEST_PREFIX:
        prefixed = col(Run.id).startswith(run_id.lower(), autoescape=True)
        matches = list(session.exec(select(Run).where(prefixed).order_by(col(Run.id).desc()).limit(4)))
    if len(matches) == 1:
        return matches[0]
    if matches:
        ids = ", ".join(run.id for run in matches[:3]) + (", ..." if len(matches) > 3 else "")
        raise RunNotFound("run", run_id, f"is the beginning of several ids: {ids}.", "Give more of the id.")
    raise RunNotFound("run", run_id, "does not exist.", "`lathe runs` and the page Runs list all runs.")


def listing(
    *,
    session: Session,
    status: Status | None = None,
    search: str = "",
    order_by: str = "queued_at",
    descending: bool = True,
    limit: int = 200,
) -> list[Run]:
    """Lists runs. `search` matches id, name, model, method and data; runs without a value in the sorted column come last.

    Raises:
        ValueError: `order_by` is not in `orders()`.
    """
    if order_by not in orders():
        raise ValueError(f"Runs cannot be sorted by {order_by!r}. Choose {', '.join(orders())}.")
    order = orders()[order_by]
    statement = select(Run).order_by((order.desc() if descending else order.asc()).nulls_last(), col(Run.id).desc())
    if status is not None:
        statement = statement.where(Run.status == status)
    for word in search.replace("\0", "").split():
        statement = statement.where(_mentions(word))
    return list(session.exec(statement.limit(limit)))


def orders() -> dict[str, ColumnElement[Any]]:
    """The columns that runs can be sorted by."""
    return {name: cast(ColumnElement[Any], col(getattr(Run, name))) for name in SORTABLE_COLUMNS} | {
        "model": _configured("model"),
        "method": _configured("method"),
        "data": _data_name(),
        "progress": Run.step * 1.0 / func.nullif(Run.total_steps, 0),
        "duration": func.coalesce(Run.finished_at, database.clock()) - col(Run.started_at),
    }


def attempts(*, session: Session, run_id: str) -> list[Attempt]:
    """The attempts of a run, the oldest first."""
    return list(session.exec(select(Attempt).where(Attempt.run_id == run_id).order_by(col(Attempt.number))))


def waiting(*, session: Session) -> list[Run]:
    """Queued runs, the oldest first."""
    oldest_first = select(Run).where(Run.status == Status.QUEUED).order_by(col(Run.queued_at), col(Run.id))
    return list(session.exec(oldest_first))


def request_stop(*, session: Session, run_id: str) -> Run:
    """Requests a stop: a queued run stops at once, a running one is stopped by its supervisor.

    Raises:
        RunNotFound: there is no such run.
        NotRunning: it has already ended.
    """
    run = _locked(session, run_id)
    if run.status.ended:
        raise NotRunning("run", run.id, f"has already {_ended(run)}; there is nothing to stop.")
    if run.status is Status.QUEUED:
        run.status, run.finished_at = Status.STOPPED, database.now(session=session)
        _note(session, run, "stopped", "Stopped while it was queued.")
    elif run.request is not Request.STOP:
        run.request = Request.STOP
        _note(session, run, "stop", "Stop requested.")
    session.flush()
    return run


def request_requeue_all(*, session: Session, host: str) -> list[Run]:
    """Requests every run on that host to save, exit and return to the queue; earlier stop requests remain."""
    here = select(Attempt.run_id).where(Attempt.run_id == Run.id, Attempt.number == Run.attempt, Attempt.host == host)
    statement = (
        update(Run)
        .where(col(Run.status) == Status.RUNNING, col(Run.request).is_distinct_from(Request.STOP), here.exists())
        .values(request=Request.REQUEUE)
        .returning(Run)
    )
    options = {"synchronize_session": False, "populate_existing": True}
    return list(session.exec(statement, execution_options=options).scalars())


def resume(*, session: Session, run_id: str, step_down: bool = False) -> Run:
    """Queues a failed or stopped run again, at the end of the queue; it continues from its last complete checkpoint.

    With `step_down`, it uses the settings proposed after an out-of-memory error.

    Raises:
        RunNotFound: there is no such run.
        NotResumable: it is queued, running or finished, or nothing was proposed.
    """
    run = _locked(session, run_id)
    if run.status not in (Status.FAILED, Status.STOPPED):
        finished = run.status is Status.FINISHED
        state = "has finished; clone it to train again." if finished else f"is {run.status.value} already."
        raise NotResumable("run", run.id, state, "Only failed or stopped runs can be resumed.")
    run.status, run.queued_at = Status.QUEUED, database.now(session=session)
    run.finished_at = run.request = None
    proposed = (run.error or {}).get("step_down") or {}
    if step_down and not proposed:
        message = "has no settings proposed that need less memory."
        raise NotResumable("run", run.id, message, "Resume it with its own settings, or clone it.")
    if step_down:
        run.stepped_down = run.stepped_down | proposed
    _note(session, run, "queued", f"Resumed{f' with {in_words(proposed)}' if step_down else ''}.")
    session.flush()
    return run


def delete(*, session: Session, run_id: str) -> None:
    """Deletes an ended run with its events, metrics and logs, and its folder after the commit.

    Raises:
        RunNotFound: there is no such run.
        NotEnded: it is queued or running.
    """
    run = _locked(session, run_id)
    if not run.status.ended:
        raise NotEnded("run", run.id, f"is {run.status.value}.", "Stop it before you delete it.")
    folder = get_settings().runs_dir / run.id
    session.exec(delete_from(Run).where(col(Run.id) == run.id))
    # A file that cannot be deleted must not restore the run: its folder then stays unused.
    database.after_commit(session, lambda: shutil.rmtree(folder, ignore_errors=True))


def _locked(session: Session, run_id: str) -> Run:
    """The run, locked against other writers until the session ends."""
    found = get(session=session, run_id=run_id)
    session.refresh(found, with_for_update=True)
    return found


def _note(session: Session, run: Run, kind: str, message: str) -> None:
    history.note(session=session, run_id=run.id, attempt=run.attempt, message=message, kind=kind)


def _ended(run: Run) -> str:
    return {Status.STOPPED: "been stopped"}.get(run.status, run.status.value)


def _mentions(word: str) -> ColumnElement[bool]:
    places: list[Any] = [col(Run.id), col(Run.name), _configured("model"), _configured("method"), _data_name()]
    return or_(*(place.icontains(word, autoescape=True) for place in places))


def _configured(name: str) -> ColumnElement[Any]:
    return cast(Any, col(Run.config))[name].as_string()  # type: ignore[no-any-return]


def _data_name() -> ColumnElement[Any]:
    named = select(Dataset.name).where(Dataset.id == Run.dataset_id).scalar_subquery()
    return func.coalesce(named, _configured("data"))

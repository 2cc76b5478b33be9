"""Runs: create, find, describe, stop, resume, delete. worker/store/claims.py takes them through the queue.

Every function takes a session, which the caller commits: `with database.write() as session: ...`.
"""

import secrets
import shutil
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, update
from sqlmodel import Session, col, select
from sqlmodel import delete as delete_from

from training.config.fields import in_words
from training.config.run_config import Changes, RunConfig
from training.errors import Conflict, NotFound, UserError
from worker.file_store import run_files
from worker.settings import get_settings
from worker.store import database, history, outbox, shares, uses
from worker.store.tables import LOCAL, Attempt, Build, Evaluation, Event, Request, Run, Status, Sweep
from worker.store.tables.shapes import LONGEST_NAME, LONGEST_NOTES, LONGEST_TAG

T = TypeVar("T", Run, Sweep, Evaluation)

ID_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # no i, l, o, u: they are misread
ID_LENGTH = 12
SHORTEST_ID, LONGEST_ID = 4, 60
"""Characters of what can begin an id, or be one."""


class RunNotFound(NotFound):
    """No run has this id, or several begin with it."""


class NotRunning(Conflict):
    """The run has ended and cannot be stopped."""


class NotResumable(Conflict):
    """The run is neither failed nor stopped."""


class NotEnded(Conflict):
    """The run is queued or running, so it cannot be deleted or archived."""


class InUse(Conflict):
    """A queued or running run loads the result of this one, so it cannot be deleted."""


class BadDescription(UserError):  # noqa: N818
    """The name, the notes or a tag of a run cannot be stored."""


class SweepTrial(NamedTuple):
    """The part of a run in a sweep: the sweep's id, the number of the configuration, and the step at which the run pauses."""

    sweep_id: str
    trial: int
    pause_at: int | None


def create(
    *,
    session: Session,
    config: RunConfig,
    dataset_id: str | None,
    fingerprints: dict[str, str] | None = None,
    parent_id: str | None = None,
    name: str = "",
    owner: str = LOCAL,
    trial: SweepTrial | None = None,
) -> Run:
    """Queues a new run. `name` is its display name; if empty, the configuration's title. `trial` is that of a sweep."""
    now = database.now(session=session)
    run = Run(
        id=new_id(now),
        name=(name or config.title)[:LONGEST_NAME],
        config=config.model_dump(mode="json"),
        dataset_id=dataset_id,
        fingerprints=fingerprints or {},
        parent_id=parent_id,
        owner=owner,
        created_at=now,
        queued_at=now,
        position=now,
    )
    if trial:
        run.sweep_id, run.trial, run.pause_at = trial
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
    matches = with_id(session, Run, run_id)
    if len(matches) == 1:
        return matches[0]
    if matches:
        ids = ", ".join(run.id for run in matches[:3]) + (", ..." if len(matches) > 3 else "")
        raise RunNotFound("run", run_id, f"is the beginning of several ids: {ids}.", "Give more of the id.")
    raise RunNotFound("run", run_id, "does not exist.", "`lathe runs` and the page Runs list all runs.")


def with_id(session: Session, table: type[T], given: str, *condition: ColumnElement[bool]) -> list[T]:
    """The row with this id, else up to 4 whose ids begin with it (4 characters or more), newest first; all fulfill `condition`."""
    if len(given) > LONGEST_ID or not given.isascii() or not given.isalnum():
        return []  # a database refuses to compare with a text of 50,000 characters
    key: Any = table.id
    exact = session.exec(select(table).where(key == given, *condition)).first()
    if exact is not None or len(given) < SHORTEST_ID:
        return [] if exact is None else [exact]
    begins = key.startswith(given.lower(), autoescape=True)
    return list(session.exec(select(table).where(begins, *condition).order_by(key.desc()).limit(4)))


def with_status(*, session: Session, status: Status, limit: int | None = None) -> list[Run]:
    """The runs with this status, archived ones too, newest first."""
    newest_first = select(Run).where(Run.status == status).order_by(col(Run.queued_at).desc(), col(Run.id).desc())
    return list(session.exec(newest_first.limit(limit)))


def attempts(*, session: Session, run_id: str) -> list[Attempt]:
    """The attempts of a run, the oldest first."""
    return list(session.exec(select(Attempt).where(Attempt.run_id == run_id).order_by(col(Attempt.number))))


def devices(*, session: Session, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """The devices of the last attempt of each run; empty before its first."""
    known: dict[str, list[str]] = {run_id: [] for run_id in run_ids}
    all_attempts = select(Attempt).where(col(Attempt.run_id).in_(run_ids)).order_by(col(Attempt.number))
    return known | {attempt.run_id: attempt.devices for attempt in session.exec(all_attempts)}


def request_stop(*, session: Session, run_id: str) -> Run:
    """Requests a stop: a queued run stops at once, a running one is stopped by its supervisor.

    Raises:
        RunNotFound: there is no such run.
        NotRunning: it has already ended.
    """
    run = locked(session=session, run_id=run_id)
    if run.status.ended:
        raise NotRunning("run", run.id, f"has already {_ended(run)}; there is nothing to stop.")
    if run.status is Status.QUEUED:
        # One that waits to do what follows its training has a result.
        run.status = Status.STOPPED if run.summary is None else Status.FINISHED
        run.finished_at = database.now(session=session)
        _note(session, run, "stopped", "Stopped while it was queued.")
        outbox.enqueue(session=session, run=run, event=Event.STOPPED)
    elif run.request is not Request.STOP:
        run.request = Request.STOP
        _note(session, run, "stop", "Stop requested.")
    session.flush()
    return run


def pause(*, session: Session, run_id: str) -> Run:
    """Holds a run: a queued one does not start, and a running one saves a checkpoint and waits, until it is released.

    Raises:
        RunNotFound: there is no such run.
        NotRunning: it has already ended.
    """
    run = locked(session=session, run_id=run_id)
    if run.status.ended:
        raise NotRunning("run", run.id, f"has already {_ended(run)}; there is nothing to pause.")
    if run.status is Status.RUNNING and run.request is None:
        run.request = Request.REQUEUE
    if not run.held:
        run.held = True
        _note(session, run, "note", "Paused: it saves a checkpoint, and waits until it is released.")
    session.flush()
    return run


def request_requeue_all(*, session: Session, host: str) -> list[Run]:
    """Requests every run on that host to save, exit and return to the queue; earlier stop requests remain."""
    here = select(Attempt.run_id).where(Attempt.run_id == Run.id, Attempt.number == Run.attempt, Attempt.host == host)
    weaker = col(Run.status) == Status.RUNNING, col(Run.request).is_distinct_from(Request.STOP)
    return database.change_all(session, Run, *weaker, here.exists(), request=Request.REQUEUE)


def resume(*, session: Session, run_id: str, step_down: bool = False, changes: Changes | None = None) -> Run:
    """Queues a failed, stopped or diverged run again, at the end of the queue; it continues from its last complete checkpoint.

    A finished run with stages that were not done (`Run.undone`) keeps its result, and does these.

    With `step_down`, it uses the settings proposed after an out-of-memory error, and with `changes` those.

    Raises:
        RunNotFound: there is no such run.
        NotResumable: it is queued, running or finished, or nothing was proposed.
    """
    run = locked(session=session, run_id=run_id)
    trained = run.status is Status.FINISHED
    if not run.resumable:
        state = "has finished; clone it to train again." if trained else f"is {run.status.value} already."
        raise NotResumable("run", run.id, state, "Only failed, stopped or diverged runs can be resumed.")
    if trained and (step_down or changes):
        fix = "Resume it without other settings, or clone it to train again."
        raise NotResumable("run", run.id, "has trained: only what follows is left.", fix)
    run.status, run.queued_at = Status.QUEUED, database.now(session=session)
    run.position, run.archived_at = run.queued_at, None
    run.finished_at = run.request = None
    run.job_id = run.job = None
    run.held = False
    if run.at_rung:  # its sweep stopped it early: now it trains to its last step
        run.pause_at = None
    if not trained:
        run.summary = None
        session.exec(
            delete_from(Build).where(col(Build.run_id) == run.id)
        )  # forms of the result that the new one replaces
    proposed = (run.error or {}).get("step_down") or {}
    if step_down and not proposed:
        message = "has no settings proposed that need less memory."
        raise NotResumable("run", run.id, message, "Resume it with its own settings, or clone it.")
    changed = (proposed if step_down else {}) | (changes or {})
    if run.config.get("stop_after_baseline"):  # its samples have been read
        changed |= {"stop_after_baseline": False}
    run.stepped_down = run.stepped_down | changed
    _note(session, run, "queued", f"Resumed{f' with {in_words(changed)}' if changed else ''}.")
    session.flush()
    return run


def describe(
    *,
    session: Session,
    run_id: str,
    name: str | None = None,
    notes: str | None = None,
    tags: Collection[str] | None = None,
    pinned: bool | None = None,
) -> Run:
    """Changes what users say about a run; None leaves a value as it is.

    Raises:
        RunNotFound: there is no such run.
        BadDescription: the name is empty, or name, notes or a tag is too long.
    """
    run = locked(session=session, run_id=run_id)
    if name is not None:
        run.name = _within("name", name.strip(), LONGEST_NAME, required=True)
    if notes is not None:
        run.notes = _within("notes", notes.strip(), LONGEST_NOTES)
    if tags is not None:
        run.tags = sorted({_within("tags", tag.strip().lower(), LONGEST_TAG) for tag in tags if tag.strip()})
    if pinned is not None:
        run.pinned = pinned
    session.flush()
    return run


def set_archived(*, session: Session, run_id: str, archived: bool) -> Run:
    """Takes an ended run off the history's usual list, or puts it back; nothing is deleted.

    Raises:
        RunNotFound: there is no such run.
        NotEnded: it is queued or running.
    """
    run = locked(session=session, run_id=run_id)
    if archived and not run.status.ended:
        raise NotEnded("run", run.id, f"is {run.status.value}.", "Stop it before you archive it.")
    run.archived_at = (run.archived_at or database.now(session=session)) if archived else None
    session.flush()
    return run


def archive_ended(*, session: Session, seconds: float) -> int:
    """Archives the runs that ended more than `seconds` ago and are not pinned; returns their number."""
    old = col(Run.finished_at) < database.clock() - seconds
    listed = col(Run.archived_at).is_(None), col(Run.pinned).is_(False)
    ended = col(Run.status).in_([status for status in Status if status.ended])
    statement = update(Run).where(old, ended, *listed).values(archived_at=database.clock())
    return len(session.exec(statement.returning(col(Run.id))).all())


def delete(*, session: Session, run_id: str) -> None:
    """Deletes an ended run with its events, metrics and logs, and its folder after the commit.

    Raises:
        RunNotFound: there is no such run.
        NotEnded: it is queued or running.
        InUse: a queued or running run loads its result.
    """
    run = locked(session=session, run_id=run_id)
    if not run.status.ended:
        raise NotEnded("run", run.id, f"is {run.status.value}.", "Stop it before you delete it.")
    check_unused(session=session, run_id=run.id)
    folder = get_settings().runs_dir / run.id
    shares.remove(session=session, kind="run", object_ids=[run.id])
    session.exec(delete_from(Run).where(col(Run.id) == run.id))
    # A file that cannot be deleted must not restore the run: its folder then stays unused.
    database.after_commit(session, lambda: shutil.rmtree(folder, ignore_errors=True))
    database.after_commit(session, lambda: run_files.forget(folder.name))


def check_unused(*, session: Session, run_id: str) -> None:
    """Raises InUse if a queued or running run loads the result of a run."""
    if count := uses.runs_that_load(session=session, run_id=run_id):
        message = f"is the teacher, reward model or initial adapter of queued or running runs ({count:,})."
        raise InUse("run", run_id, message, "Wait until they have ended, or stop them.")


def locked(*, session: Session, run_id: str) -> Run:
    """The run, locked against other writers until the session ends. Raises RunNotFound if there is no such run."""
    found = get(session=session, run_id=run_id)
    session.refresh(found, with_for_update=True)
    return found


def _within(field: str, text: str, most: int, *, required: bool = False) -> str:
    if required and not text:
        raise BadDescription(field, text, "is empty.", "Give a name.")
    if len(text) > most:
        raise BadDescription(field, f"{text[:40]}...", f"has {len(text):,} characters.", f"Use at most {most:,}.")
    return text


def _note(session: Session, run: Run, kind: str, message: str) -> None:
    history.note(session=session, run=run, message=message, kind=kind)


def _ended(run: Run) -> str:
    return "been stopped" if run.status is Status.STOPPED else run.status.value

"""The messages that channels have to get: written with the event, claimed by one deliverer at a time, retried.

A message is written in the transaction that ends the run, so none is lost and none is sent for an end that was rolled back. A
unique key (channel, run, attempt, event) keeps an event from being written twice. A claim is one conditional UPDATE; if the
deliverer is killed before it stores the result, the claim ends and another one sends the message again.
"""

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement
from sqlmodel import Session, col, delete, func, select

from training.redaction import redact, redact_all
from worker.store import channels, database
from worker.store.database import UNREACHABLE
from worker.store.tables import ChannelKind, Event, Notification, NotificationChannel, Run

log = logging.getLogger(__name__)

CLAIM_SECONDS = 90.0
RETRY_SECONDS = (10.0, 60.0, 300.0, 1800.0, 7200.0, 21600.0, 43200.0)
"""How long to wait after the first try that failed, the second, ...; after the last one the message is given up."""
KEPT_SECONDS = 30 * 24 * 3600.0
BROWSER_SECONDS = 600.0
"""For how long an open page can still show a message."""

_SNAPSHOT = (
    "id",
    "name",
    "owner",
    "status",
    "step",
    "total_steps",
    "final_loss",
    "best_loss",
    "started_at",
    "finished_at",
    "worked_seconds",
)
_ERROR = ("message", "fix", "phase", "rank", "diagnosis", "step_down")


def enqueue(*, session: Session, run: Run, event: Event, attempt: int | None = None) -> None:
    """Writes a message for each channel that is told of this event. Never fails: a run is more important than its messages.

    Raises:
        OperationalError: the database is unreachable.
    """
    try:
        with session.begin_nested():
            _write(session, run, event, run.attempt if attempt is None else attempt)
    except UNREACHABLE:
        raise
    except Exception:
        log.exception("no notification of %s for run %s", event.value, run.id)


def _write(session: Session, run: Run, event: Event, attempt: int) -> None:
    listening = channels.listening(session=session, owner=run.owner, event=event)
    if not listening:
        return
    now, snapshot = database.now(session=session), _snapshot(run)
    rows = [
        {
            "channel_id": channel.id, "run_id": run.id, "attempt": attempt, "event": event, "run": snapshot,
            "created_at": now, "next_try_at": now, "tries": 0, "reason": "",
            # An open page asks by itself; nobody has to send the message.
            "done_at": now if channel.kind == ChannelKind.BROWSER else None,
            "delivered": channel.kind == ChannelKind.BROWSER,
        }
        for channel in listening
    ]  # fmt: skip
    session.exec(database.insert(session, Notification).values(rows).on_conflict_do_nothing())


def _snapshot(run: Run) -> dict[str, Any]:
    """What a message says about the run: it may have been resumed or deleted before the message is sent."""
    values = run.model_dump(mode="json", include=set(_SNAPSHOT))
    error = {name: value for name, value in (run.error or {}).items() if name in _ERROR}
    return dict(redact_all(values | {"task": run.config.get("task"), "error": error or None}))


def add_test(*, session: Session, channel: NotificationChannel) -> Notification:
    """A test message, claimed by the caller."""
    now = database.now(session=session)
    message = Notification(
        channel_id=channel.id, event=Event.TEST, run={}, created_at=now, tries=1, next_try_at=now + CLAIM_SECONDS
    )
    session.add(message)
    session.flush()
    return message


def due(*, session: Session, limit: int) -> list[int]:
    """The ids of messages to send now, the oldest first."""
    found = select(Notification.id).where(*_open()).order_by(col(Notification.next_try_at)).limit(limit)
    return [found_id for found_id in session.exec(found) if found_id is not None]


def claim(*, session: Session, message_id: int) -> Notification | None:
    """Takes a message to send it; None if another deliverer has it, or it is not due any more."""
    taken = {"tries": Notification.tries + 1, "next_try_at": database.clock() + CLAIM_SECONDS}
    return database.change(session, Notification, col(Notification.id) == message_id, *_open(), **taken)


def delivered(*, session: Session, message: Notification) -> bool:
    """Stores that the message was sent. False if the claim has ended meanwhile."""
    return _close(session, message, done_at=database.clock(), delivered=True, reason="")


def failed(*, session: Session, message: Notification, reason: str, final: bool, wait: float | None = None) -> bool:
    """Stores why the message could not be sent: it is tried again later, or given up. False if the claim has ended meanwhile.

    `wait` is the number of seconds that the receiver asked for.
    """
    if final or message.tries > len(RETRY_SECONDS):
        return _close(session, message, done_at=database.clock(), reason=redact(reason))
    seconds = max(RETRY_SECONDS[message.tries - 1], min(wait or 0.0, RETRY_SECONDS[-1]))
    return _close(session, message, next_try_at=database.clock() + seconds, reason=redact(reason))


def _close(session: Session, message: Notification, **values: Any) -> bool:
    mine = (
        col(Notification.id) == message.id,
        col(Notification.tries) == message.tries,
        col(Notification.done_at).is_(None),
    )
    return database.change(session, Notification, *mine, **values) is not None


def recent(*, session: Session, owner: str, limit: int = 20) -> list[tuple[Notification, NotificationChannel]]:
    """The latest messages to a user's webhooks and e-mail addresses, the newest first."""
    mine = select(Notification, NotificationChannel).join(NotificationChannel)
    mine = mine.where(NotificationChannel.owner == owner, NotificationChannel.kind != ChannelKind.BROWSER)
    return list(session.exec(mine.order_by(col(Notification.id).desc()).limit(limit)))


def for_browser(*, session: Session, owner: str, after: int | None) -> tuple[list[Notification], int]:
    """The messages for the open pages of a user after the id `after`, the oldest first, and the id to continue after."""
    mine = select(Notification).join(NotificationChannel)
    mine = mine.where(NotificationChannel.owner == owner, NotificationChannel.kind == ChannelKind.BROWSER)
    if after is None:
        return [], session.exec(select(func.max(Notification.id))).one() or 0
    fresh = col(Notification.created_at) > database.clock() - BROWSER_SECONDS, col(Notification.id) > after
    found: Sequence[Notification] = session.exec(mine.where(*fresh).order_by(col(Notification.id)).limit(20)).all()
    return list(found), max([after, *(message.id or 0 for message in found)])


def get(*, session: Session, message_id: int) -> Notification:
    """The message with this id."""
    return session.get_one(Notification, message_id)


def forget_old(*, session: Session) -> None:
    """Deletes messages that were sent or given up a month ago."""
    old = col(Notification.done_at) < database.clock() - KEPT_SECONDS
    session.exec(delete(Notification).where(old))


def _open() -> tuple[ColumnElement[bool], ...]:
    return col(Notification.done_at).is_(None), col(Notification.next_try_at) <= database.clock()


def latest_test(*, session: Session, channel_id: str) -> float | None:
    """When the channel was last tested, by the database's clock; None if never."""
    tests = Notification.channel_id == channel_id, Notification.event == Event.TEST
    return session.exec(select(func.max(Notification.created_at)).where(*tests)).one()

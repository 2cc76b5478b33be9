"""Channels: the addresses that users want to be told at, and for which events.

Every function takes a session, which the caller commits, as in worker/store/runs.py.
"""

import secrets
from collections.abc import Collection, Sequence

from sqlmodel import Session, col, or_, select

from training.errors import NotFound, UserError
from worker.store import database
from worker.store.tables import ChannelKind, Event, NotificationChannel, WebhookFormat
from worker.store.tables.row import whole

MOST = 20
"""Channels of one owner."""


class ChannelError(UserError):
    """The channel cannot be stored."""


class ChannelNotFound(NotFound):
    """There is no such channel, or it belongs to another user."""


def add(
    *,
    session: Session,
    owner: str,
    kind: ChannelKind,
    address: str,
    events: Collection[str],
    format: WebhookFormat = WebhookFormat.JSON,
    everyone: bool = False,
) -> NotificationChannel:
    """Stores a channel; its address was checked.

    Raises:
        ChannelError: the owner has it already, or as many as an owner may have; or an event is unknown.
    """
    chosen = checked_events(events)
    mine = of_owner(session=session, owner=owner)
    if any((one.kind, one.address, one.everyone) == (kind, address, everyone) for one in mine):
        raise ChannelError("address", None, "is already in the list.", "Change the events of that entry.")
    if len(mine) >= MOST:
        raise ChannelError("address", None, f"would be number {len(mine) + 1}; {MOST} are possible.", "Remove one.")
    channel = NotificationChannel(
        id=secrets.token_hex(6), owner=owner, kind=kind, address=address, format=format, events=chosen, everyone=everyone,
        created_at=database.now(session=session),
    )  # fmt: skip
    session.add(channel)
    session.flush()
    return channel


def checked_events(events: Collection[str]) -> list[str]:
    """The events in their usual order, each once. Raises ChannelError if one is unknown, or there is none."""
    names = [event.value for event in Event if event.offered]
    for event in events:
        if event not in names:
            raise ChannelError("events", event, "is not an event.", f"Choose from {', '.join(names)}.")
    if not events:
        raise ChannelError("events", None, "are empty.", f"Choose from {', '.join(names)}.")
    return [name for name in names if name in events]


def get(*, session: Session, channel_id: str) -> NotificationChannel:
    """The channel with this id. Raises ChannelNotFound if there is none."""
    missing = ChannelNotFound("channel", channel_id[:40], "does not exist.", "`lathe notify list` lists yours.")
    return database.existing(session, NotificationChannel, channel_id, missing)


def set_events(*, session: Session, channel_id: str, events: Collection[str]) -> NotificationChannel:
    """Replaces the events of a channel.

    Raises:
        ChannelNotFound: there is none.
        ChannelError: an event is unknown, or there is none.
    """
    channel = get(session=session, channel_id=channel_id)
    channel.events = checked_events(events)
    session.add(channel)
    return channel


def remove(*, session: Session, channel_id: str) -> None:
    """Removes a channel with the messages that it has not got yet. Raises ChannelNotFound if there is none."""
    session.delete(get(session=session, channel_id=channel_id))


def remove_of(*, session: Session, owner: str) -> None:
    """Removes all channels of an account."""
    for channel in of_owner(session=session, owner=owner):
        session.delete(channel)


def of_owner(*, session: Session, owner: str) -> list[NotificationChannel]:
    """The channels of a user, the oldest first."""
    mine = select(NotificationChannel).where(NotificationChannel.owner == owner)
    return list(session.exec(mine.order_by(col(NotificationChannel.created_at), col(NotificationChannel.id))))


def for_everyone(*, session: Session) -> list[NotificationChannel]:
    """The channels for the runs of all users, the oldest first."""
    shared = select(NotificationChannel).where(col(NotificationChannel.everyone).is_(True))
    return list(session.exec(shared.order_by(col(NotificationChannel.created_at), col(NotificationChannel.id))))


def listening(*, session: Session, owner: str, event: Event) -> Sequence[NotificationChannel]:
    """The channels that are told of this event of a run of `owner`."""
    possible = or_(col(NotificationChannel.owner) == owner, col(NotificationChannel.everyone).is_(True))
    found = whole(session.exec(select(NotificationChannel).where(possible)))
    return [channel for channel in found if event.value in channel.events]

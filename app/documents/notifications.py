"""Notification channels and messages as dictionaries: what REST returns and `lathe notify --json` prints."""

from collections.abc import Iterable
from typing import Any

from worker.notifications.addresses import masked
from worker.notifications.messages import of_run
from worker.settings import get_settings
from worker.store.tables import ChannelKind, Notification, NotificationChannel

STATES = ("waiting", "delivered", "given up", "failed, tried again")


def channel_document(channel: NotificationChannel) -> dict[str, Any]:
    """A channel; a webhook's address without its secret part."""
    hook = channel.kind is ChannelKind.WEBHOOK
    return {
        "id": channel.id,
        "owner": channel.owner,
        "kind": channel.kind.value,
        "address": masked(channel.address) if hook else channel.address,
        "format": channel.format.value if hook else None,
        "events": channel.events,
        "everyone": channel.everyone,
        "created_at": channel.created_at,
    }


def document(
    channels: Iterable[NotificationChannel], messages: Iterable[tuple[Notification, NotificationChannel | None]]
) -> dict[str, Any]:
    """Channels, and the latest messages to them with their outcome."""
    return {
        "channels": [channel_document(channel) for channel in channels],
        "messages": [message_document(*message) for message in messages],
    }


def message_document(message: Notification, channel: NotificationChannel | None = None) -> dict[str, Any]:
    """A message with its outcome: `state` is one of STATES, `reason` why the last try failed. Times are epoch seconds."""
    return {
        "id": message.id,
        "channel": message.channel_id,
        "address": channel_document(channel)["address"] if channel else None,
        "event": message.event.value,
        "run": message.run_id,
        "name": message.run.get("name"),
        "created_at": message.created_at,
        "state": _state(message),
        "tries": message.tries,
        "reason": message.reason,
        "next_try_at": None if message.done_at else message.next_try_at,
        "done_at": message.done_at,
    }


def browser_document(message: Notification) -> dict[str, Any]:
    """A message as the browser shows it: title, text and the address of the run."""
    said = of_run(message.event, message.run, None, get_settings())
    return {
        "id": message.id,
        "title": said.title,
        "text": "\n".join(said.lines),
        "address": f"/run?id={message.run_id}",
    }


def _state(message: Notification) -> str:
    if message.done_at is not None:
        return "delivered" if message.delivered else "given up"
    return "failed, tried again" if message.reason else "waiting"

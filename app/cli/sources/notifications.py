"""Notification channels, of the local database or the server."""

from typing import Any
from urllib.parse import quote

from app.cli.options import ready
from app.cli.sources.server import chosen

_PATH = "/api/notifications"


def document() -> dict[str, Any]:
    """The channels and the latest messages, as `lathe notify list --json` prints them."""
    if server := chosen():
        return dict(server.get(_PATH))
    from app.access import notify
    from app.documents.notifications import channel_document, message_document

    ready()
    messages = [message_document(*pair) for pair in notify.history()]
    return {"channels": [channel_document(channel) for channel in notify.listing()], "messages": messages}


def add(address: str, events: tuple[str, ...], form: str | None, *, everyone: bool) -> dict[str, Any]:
    """Adds a channel and returns it."""
    if server := chosen():
        wanted = {"address": address, "events": list(events), "format": form, "everyone": everyone}
        return dict(server.send("POST", _PATH, json=wanted))
    from app.access import notify
    from app.documents.notifications import channel_document
    from worker.store.tables import WebhookFormat

    ready()
    wish = notify.Wish(address, events, WebhookFormat(form) if form else None, everyone)
    return channel_document(notify.add(wish))


def remove(channel_id: str) -> None:
    """Removes a channel."""
    if server := chosen():
        server.send("DELETE", f"{_PATH}/{quote(channel_id, safe='')}")
        return
    from app.access import notify

    ready()
    notify.remove(channel_id)


def test(channel_id: str) -> dict[str, Any]:
    """Sends a test message and returns it with the outcome."""
    if server := chosen():
        return dict(server.send("POST", f"{_PATH}/{quote(channel_id, safe='')}/test"))
    from app.access import notify
    from app.documents.notifications import message_document

    ready()
    return message_document(notify.test(channel_id))

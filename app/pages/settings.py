"""The page Settings, at /settings: account, colleagues, notifications, what forms begin with, and where files are."""

from typing import Any

from starlette.datastructures import QueryParams

from app.access import account, callers, notify, users
from app.documents import installation
from app.documents.notifications import document
from app.format import settings as words
from app.pages.common.view import Context, View
from worker.settings import get_settings


def settings(_: QueryParams) -> Context:
    """What the caller may see and change; `users` is None for callers who are no admins."""
    caller, here = callers.current(), get_settings()
    admin = caller.administers
    notifications = document(notify.listing(), notify.history())
    channels, messages = notifications["channels"], notifications["messages"]
    return {
        "caller": caller,
        "admin": admin,
        "account": account.document(),
        "channels": [channel for channel in channels if channel["kind"] != "browser"],
        "browser_events": _browser_events(channels, caller.name),
        "tests": {message["channel"]: message for message in reversed(messages) if message["event"] == "test"},
        "messages": messages,
        "preferences": notify.current_preferences(),
        "users": users.listing(usage=False) if admin else None,
        "folders": {
            "Folders": installation.folders(here, admin=admin),
            "For notifications": installation.services(here, admin=admin),
        },
        "words": words,
    }


def _browser_events(channels: list[dict[str, Any]], caller: str) -> list[str]:
    """The events that the caller's open pages show."""
    own = (channel for channel in channels if channel["kind"] == "browser" and channel["owner"] == caller)
    return next((list(channel["events"]) for channel in own), [])


view = View("/settings", "settings.html", settings)

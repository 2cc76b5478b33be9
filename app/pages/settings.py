"""The page Settings, at /settings: account, colleagues, notifications, what forms begin with, and where files are."""

from starlette.datastructures import QueryParams

from app.access import callers, users
from app.documents import preferences as documents
from app.documents.preferences import Channel
from app.pages.common.view import Context, View
from app.texts import LANGUAGES, gettext_noop
from worker.choices import USUAL_EVENTS, Event, WebhookFormat
from worker.settings import get_settings

EVENTS = {
    Event.FINISHED: gettext_noop("Finished"),
    Event.FAILED: gettext_noop("Failed"),
    Event.STOPPED: gettext_noop("Stopped"),
    Event.DIVERGED: gettext_noop("Loss not finite"),
    Event.TEST: gettext_noop("Test"),
}
FORMATS = {
    WebhookFormat.JSON: "JSON",
    WebhookFormat.SLACK: gettext_noop("Slack, Mattermost: text"),
    WebhookFormat.DISCORD: gettext_noop("Discord: content"),
    WebhookFormat.NTFY: gettext_noop("ntfy: plain text"),
}
CHANNELS = {
    WebhookFormat.JSON: gettext_noop("Webhook, JSON"),
    WebhookFormat.SLACK: gettext_noop("Webhook, text"),
    WebhookFormat.DISCORD: gettext_noop("Webhook, Discord"),
    WebhookFormat.NTFY: gettext_noop("Webhook, ntfy"),
}
ROLES = {
    "runs the server": gettext_noop("the user who runs the server: may change everything"),
    "admin": gettext_noop("admin: may change all runs and data sets, and manages users"),
    "user": gettext_noop("user: changes own runs and data sets"),
}


def settings(_: QueryParams) -> Context:
    """What the caller may see and change; `users` is None for callers who are no admins."""
    caller, here = callers.current(), get_settings()
    admin = caller.administers
    notifications = documents.channel_list(users.own_channels(), users.own_messages())
    channels, messages = notifications.channels, notifications.messages
    return {
        "caller": caller,
        "admin": admin,
        "account": users.own(),
        "channels": [channel for channel in channels if channel.kind != "browser"],
        "browser_events": _browser_events(channels, caller.name),
        "tests": {message.channel: message for message in reversed(messages) if message.event == "test"},
        "messages": messages,
        "preferences": users.own_preferences(),
        "users": users.listing() if admin else None,
        "folders": {
            gettext_noop("Folders"): documents.folders(here, admin=admin),
            gettext_noop("For notifications"): documents.services(here, admin=admin),
        },
        "EVENTS": EVENTS,
        "USUAL_EVENTS": USUAL_EVENTS,
        "FORMATS": {"": gettext_noop("by the host")} | FORMATS,
        "CHANNELS": CHANNELS,
        "ROLES": ROLES,
        "LANGUAGES": LANGUAGES,
    }


def _browser_events(channels: list[Channel], caller: str) -> list[str]:
    """The events that the caller's open pages show."""
    own = (channel for channel in channels if channel.kind == "browser" and channel.owner == caller)
    return next((channel.events for channel in own), [])


view = View("/settings", "settings.html", settings)

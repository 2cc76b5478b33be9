"""Settings: the caller, what they prefer, the folders and services that users see, notification channels and messages."""

import os
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from app.documents import Document, Stored
from app.texts import _
from worker.notifications import mail
from worker.notifications.addresses import masked
from worker.notifications.messages import of_run, page_address
from worker.settings import PREFIX, Settings, get_settings
from worker.store.tables import ChannelKind, Notification, NotificationChannel


class AccountOfCaller(Document):
    """The caller: the name under which their runs are listed, and where their token is kept (null: they have none)."""

    name: str
    role: str
    signed_in: bool
    token: str | None


class Preferences(Stored):
    """What the caller prefers."""

    model: str = Field(description="that of a new form on New run; empty for none")
    price_gpu_hour: str = Field(description="such as 2.50, or h100=2.50, l4=0.60; empty if costs are not estimated")
    price_kwh: str
    plots: dict[str, Any] | None = Field(
        None, description="of all pages, as PUT takes them; null if nothing was chosen"
    )


class InstallationEntry(Document):
    """A folder or service of the installation: its value, the variable that sets it, and where the value comes from."""

    name: str
    value: str | None
    variable: str | None
    source: str
    about: str


class SettingsAnswer(Document):
    """The caller's account and preferences, and the folders and services of the installation."""

    account: AccountOfCaller
    preferences: Preferences
    folders: list[InstallationEntry]
    services: list[InstallationEntry]


def folders(settings: Settings, *, admin: bool) -> list[InstallationEntry]:
    """Where files are. `value` is None where nothing is set; other users than admins do not see paths of the server."""
    below = _("below {variable}").format(variable=f"{PREFIX}DATA_DIR")
    found = [
        _entry(_("Data folder"), settings.data_dir, "data_dir", _("Database, runs, data sets and uploads.")),
        _entry(_("Results"), settings.runs_dir, below, _("A folder for each run: checkpoints, adapter, log.")),
        _entry(_("Data sets"), settings.datasets_dir, below, _("Imported data sets, each stored once.")),
        _entry(_("Uploads"), settings.uploads_dir, below, _("Files on their way in; deleted after the import.")),
        _entry(_("Tokenized data sets"), settings.tokens_dir, below, _("Can be deleted at any time (System, Disk).")),
        _entry(
            _("Data files to choose from"), settings.data_folders, "data_folders", _("Offered on Data sets, no upload.")
        ),
        _entry(
            _("Models to choose from"), settings.model_folders, "model_folders", _("Accounts may use models below.")
        ),
    ]
    return found if admin else [one.model_copy(update={"value": _("set") if one.value else None}) for one in found]


def services(settings: Settings, *, admin: bool) -> list[InstallationEntry]:
    """What notifications use: the address for links, the mail server's sender, and hosts for webhooks."""
    sender = mail.sender(settings) if mail.configured(settings) else None
    found = [
        _entry(_("Address in links"), page_address(settings), "public_url", _("Notifications link to runs below it.")),
        _entry(
            _("Mail server"), _("set") if settings.smtp_url else None, "smtp_url", _("Sends notifications by e-mail.")
        ),
        _entry(_("Sender of e-mail"), sender, "smtp_from", _("Default: the user name of the mail server.")),
        _entry(
            _("Internal webhook hosts"), settings.webhook_hosts, "webhook_hosts", _("Webhooks of all users reach them.")
        ),
    ]
    return found if admin else found[:3]


def _entry(name: str, value: object, field: str, about: str) -> InstallationEntry:
    """An entry; `source` is the environment variable and whether it is set, or what the value follows from."""
    variable = f"{PREFIX}{field.upper()}" if field in Settings.model_fields else ""
    source = (variable if os.environ.get(variable) else "default") if variable else field
    written = str(value) if value else None
    return InstallationEntry(name=name, value=written, variable=variable or None, source=source, about=about)


State = Literal["waiting", "delivered", "given up", "failed, tried again"]


class Channel(Stored):
    """A webhook or an e-mail address; the secret part of a webhook's address is left out."""

    id: str
    owner: str
    kind: str
    address: str
    format: str | None
    events: list[str]
    everyone: bool = Field(description="tells about the runs of all users")
    created_at: float

    @classmethod
    def of(cls, channel: NotificationChannel) -> "Channel":
        hook = channel.kind is ChannelKind.WEBHOOK
        shown = {"address": masked(channel.address) if hook else channel.address}
        return cls(**channel.shown(*cls.model_fields) | shown | {"format": channel.format.value if hook else None})


class Message(Stored):
    """A message with its outcome. Times are seconds since the epoch."""

    id: int | None
    channel: str | None
    address: str | None
    event: str
    run: str | None
    name: str | None
    created_at: float
    state: State
    tries: int
    reason: str = Field(description="why the last try failed, or empty")
    next_try_at: float | None
    done_at: float | None

    @classmethod
    def of(cls, message: Notification, channel: NotificationChannel | None = None) -> "Message":
        return cls(
            id=message.id,
            channel=message.channel_id,
            address=Channel.of(channel).address if channel else None,
            event=message.event.value,
            run=message.run_id,
            name=message.run.get("name"),
            created_at=message.created_at,
            state=_state(message),
            tries=message.tries,
            reason=message.reason,
            next_try_at=None if message.done_at else message.next_try_at,
            done_at=message.done_at,
            damaged=message.damaged,
            damage=message.damage,
        )


class ChannelList(Document):
    """The caller's channels, and the latest messages to them, the newest first."""

    channels: list[Channel]
    messages: list[Message]


class BrowserMessage(Document):
    """A message as an open page shows it."""

    id: int
    title: str
    text: str
    address: str

    @classmethod
    def of(cls, message: Notification) -> "BrowserMessage":
        said = of_run(message.event, message.run, None, get_settings())
        address = f"/run?id={message.run_id}"
        return cls(id=message.id or 0, title=said.title, text="\n".join(said.lines), address=address)


class BrowserMessages(Document):
    """The messages to show, and the id to continue after."""

    messages: list[BrowserMessage]
    next: int


class BrowserEvents(Document):
    """The events that the caller's open pages show."""

    events: list[str]


def channel_list(
    channels: Iterable[NotificationChannel], messages: Iterable[tuple[Notification, NotificationChannel | None]]
) -> ChannelList:
    """Channels, and the latest messages to them with their outcome."""
    return ChannelList(channels=[Channel.of(one) for one in channels], messages=[Message.of(*one) for one in messages])


def _state(message: Notification) -> State:
    if message.done_at is not None:
        return "delivered" if message.delivered else "given up"
    return "failed, tried again" if message.reason else "waiting"

"""Settings of the caller and the installation, and notifications."""

from typing import Literal

from pydantic import Field

from app.web.rest.answers.form import Answer


class AccountOfCaller(Answer):
    """The caller: the name under which their runs are listed, and where their token is kept (null: they have none)."""

    name: str
    role: str
    signed_in: bool
    token: str | None


class Preferences(Answer):
    """What the caller prefers."""

    model: str = Field(description="that of a new form on New run; empty for none")


class InstallationEntry(Answer):
    """A folder or service of the installation: its value, the variable that sets it, and where the value comes from."""

    name: str
    value: str | None
    variable: str | None
    source: str
    about: str


class SettingsAnswer(Answer):
    """The caller's account and preferences, and the folders and services of the installation."""

    account: AccountOfCaller
    preferences: Preferences
    folders: list[InstallationEntry]
    services: list[InstallationEntry]


class Channel(Answer):
    """A webhook or an e-mail address; the secret part of a webhook's address is left out."""

    id: str
    owner: str
    kind: str
    address: str
    format: str | None
    events: list[str]
    everyone: bool = Field(description="tells about the runs of all users")
    created_at: float


class Message(Answer):
    """A message with its outcome. Times are seconds since the epoch."""

    id: int | None
    channel: str | None
    address: str | None
    event: str
    run: str | None
    name: str | None
    created_at: float
    state: Literal["waiting", "delivered", "given up", "failed, tried again"]
    tries: int
    reason: str = Field(description="why the last try failed, or empty")
    next_try_at: float | None
    done_at: float | None


class ChannelList(Answer):
    """The caller's channels, and the latest messages to them, the newest first."""

    channels: list[Channel]
    messages: list[Message]


class BrowserMessage(Answer):
    """A message as an open page shows it."""

    id: int
    title: str
    text: str
    address: str


class BrowserMessages(Answer):
    """The messages to show, and the id to continue after."""

    messages: list[BrowserMessage]
    next: int


class BrowserEvents(Answer):
    """The events that the caller's open pages show."""

    events: list[str]

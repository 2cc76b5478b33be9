"""REST routes of notifications: channels, their messages, and what an open page shows."""

from typing import Annotated, Any, Literal

from fastapi import Body, Query
from pydantic import Field

from app.access import notify
from app.access.notify import Wish
from app.documents.notifications import browser_document, channel_document, document, message_document
from app.web.rest.routing import Answer, BodyForm, JsonRouter, answers
from worker.store.tables import Event, WebhookFormat


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


router = JsonRouter(prefix="/api/notifications")


class NewChannel(BodyForm):
    """A channel to add: a webhook's URL or an e-mail address. Without `format`, the host of the URL decides."""

    address: str
    events: list[str] = Field([Event.FINISHED, Event.FAILED, Event.DIVERGED])
    format: WebhookFormat | None = None
    everyone: bool = False


class Events(BodyForm):
    """The events of a channel: finished, failed, stopped, diverged."""

    events: list[str]


@router.get("", **answers(ChannelList))
def list_channels() -> dict[str, Any]:
    """The caller's channels, and the latest messages to them with their outcome, the newest first."""
    return document(notify.listing(), notify.history())


@router.post("", status_code=201, **answers(Channel, 201))
def add_channel(wanted: Annotated[NewChannel, Body()]) -> dict[str, Any]:
    """Adds a webhook or an e-mail address. `everyone`, for admins: tells about the runs of all users."""
    wish = Wish(wanted.address, tuple(wanted.events), wanted.format, wanted.everyone)
    return channel_document(notify.add(wish))


@router.get("/browser", **answers(BrowserMessages))
def show_in_browser(after: Annotated[int | None, Query(ge=0)] = None) -> dict[str, Any]:
    """What an open page of the caller shows after the message `after`; without it only `next`, the id to continue after."""
    found, following = notify.for_browser(after)
    return {"messages": [browser_document(message) for message in found], "next": following}


@router.put("/browser", **answers(BrowserEvents))
def set_browser_events(wanted: Annotated[Events, Body()]) -> dict[str, Any]:
    """Sets the events that the caller's open pages show; an empty list turns them off."""
    notify.set_browser(wanted.events)
    return {"events": wanted.events}


@router.put("/{channel_id}", **answers(Channel))
def change_channel(channel_id: str, wanted: Annotated[Events, Body()]) -> dict[str, Any]:
    """Replaces the events of a channel."""
    return channel_document(notify.set_events(channel_id, wanted.events))


@router.delete("/{channel_id}", status_code=204)
def remove_channel(channel_id: str) -> None:
    """Removes a channel."""
    notify.remove(channel_id)


@router.post("/{channel_id}/test", **answers(Message))
def test_channel(channel_id: str) -> dict[str, Any]:
    """Sends a test message now; the answer holds its outcome: `state` is delivered or given up, with the `reason`."""
    return message_document(notify.test(channel_id))

"""REST routes of notifications: channels, their messages, and what an open page shows."""

from typing import Annotated, Any

from fastapi import Body, Query, Response
from pydantic import BaseModel, ConfigDict

from app.access import notify
from app.access.notify import Wish
from app.documents.notifications import browser_document, channel_document, message_document
from app.web.rest.answers.form import answers
from app.web.rest.answers.settings import BrowserEvents, BrowserMessages, Channel, ChannelList, Message
from app.web.rest.json_route import JsonRouter
from worker.store.tables import Event, WebhookFormat

router = JsonRouter(prefix="/api/notifications")


class NewChannel(BaseModel):
    """A channel to add: a webhook's URL or an e-mail address. Without `format`, the host of the URL decides."""

    model_config = ConfigDict(extra="forbid")

    address: str
    events: list[str] = [Event.FINISHED, Event.FAILED, Event.DIVERGED]
    format: WebhookFormat | None = None
    everyone: bool = False


class Events(BaseModel):
    """The events of a channel: finished, failed, stopped, diverged."""

    model_config = ConfigDict(extra="forbid")

    events: list[str]


@router.get("", **answers(ChannelList))
def list_channels() -> dict[str, Any]:
    """The caller's channels, and the latest messages to them with their outcome, the newest first."""
    messages = [message_document(*pair) for pair in notify.history()]
    return {"channels": [channel_document(channel) for channel in notify.listing()], "messages": messages}


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
def remove_channel(channel_id: str) -> Response:
    """Removes a channel."""
    notify.remove(channel_id)
    return Response(status_code=204)


@router.post("/{channel_id}/test", **answers(Message))
def test_channel(channel_id: str) -> dict[str, Any]:
    """Sends a test message now; the answer holds its outcome: `state` is delivered or given up, with the `reason`."""
    return message_document(notify.test(channel_id))

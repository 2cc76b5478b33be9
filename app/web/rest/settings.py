"""REST routes of the caller's settings: account, token, preferences, the installation's folders, notifications, and the tour."""

from typing import Annotated

from fastapi import Body, Query
from pydantic import Field

from app.access import callers, notify, users
from app.access.notify import Wish
from app.documents import preferences as documents
from app.documents.preferences import (
    BrowserEvents,
    BrowserMessage,
    BrowserMessages,
    Channel,
    ChannelList,
    Message,
    Preferences,
    SettingsAnswer,
)
from app.documents.tour import Step
from app.documents.users import NewToken
from app.web.rest.routing import BodyForm, JsonRouter
from worker.settings import get_settings
from worker.store.tables import Event, WebhookFormat

router = JsonRouter(prefix="/api")


PlotKeys = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=200)]


class PlotOptions(BodyForm):
    """What the caller chose for the plots of all pages; `order` and `without` are keys of plots."""

    axis: str = Field(max_length=20)
    smoothing: str = Field(max_length=20)
    log: bool
    clip: bool
    order: PlotKeys
    without: PlotKeys = Field(description="the hidden ones")


class NewPreferences(BodyForm):
    """What the caller prefers; what is left out stays."""

    model: str | None = None
    price_gpu_hour: str | None = None
    price_kwh: str | None = None
    plots: PlotOptions | None = None


class NewChannel(BodyForm):
    """A channel to add: a webhook's URL or an e-mail address. Without `format`, the host of the URL decides."""

    address: str
    events: list[str] = Field([Event.FINISHED, Event.FAILED, Event.DIVERGED])
    format: WebhookFormat | None = None
    everyone: bool = False


class Events(BodyForm):
    """The events of a channel: finished, failed, stopped, diverged."""

    events: list[str]


@router.get("/settings")
def show_settings() -> SettingsAnswer:
    """The caller's account and preferences, and the folders and services of the installation with their variables."""
    admin, settings = callers.current().administers, get_settings()
    return SettingsAnswer(
        account=users.own(),
        preferences=Preferences.model_validate(notify.current_preferences()),
        folders=documents.folders(settings, admin=admin),
        services=documents.services(settings, admin=admin),
    )


@router.put("/settings")
def change_settings(wanted: Annotated[NewPreferences, Body()]) -> SettingsAnswer:
    """Changes the caller's preferences."""
    notify.change_preferences(**wanted.model_dump(exclude_none=True))
    return show_settings()


@router.post("/settings/token")
def rotate_own_token() -> NewToken:
    """Replaces the caller's token; the old one stops working. The answer holds the new one, only this once."""
    return NewToken(name=callers.current().name, token=users.rotate_own())


@router.get("/notifications")
def list_channels() -> ChannelList:
    """The caller's channels, and the latest messages to them with their outcome, the newest first."""
    return documents.channel_list(notify.listing(), notify.history())


@router.post("/notifications", status_code=201)
def add_channel(wanted: Annotated[NewChannel, Body()]) -> Channel:
    """Adds a webhook or an e-mail address. `everyone`, for admins: tells about the runs of all users."""
    wish = Wish(wanted.address, tuple(wanted.events), wanted.format, wanted.everyone)
    return Channel.of(notify.add(wish))


@router.get("/notifications/browser")
def show_in_browser(after: Annotated[int | None, Query(ge=0)] = None) -> BrowserMessages:
    """What an open page of the caller shows after the message `after`; without it only `next`, the id to continue after."""
    messages, following = notify.for_browser(after)
    return BrowserMessages(messages=[BrowserMessage.of(message) for message in messages], next=following)


@router.put("/notifications/browser")
def set_browser_events(wanted: Annotated[Events, Body()]) -> BrowserEvents:
    """Sets the events that the caller's open pages show; an empty list turns them off."""
    notify.set_browser(wanted.events)
    return BrowserEvents(events=wanted.events)


@router.put("/notifications/{channel_id}")
def change_channel(channel_id: str, wanted: Annotated[Events, Body()]) -> Channel:
    """Replaces the events of a channel."""
    return Channel.of(notify.set_events(channel_id, wanted.events))


@router.delete("/notifications/{channel_id}", status_code=204)
def remove_channel(channel_id: str) -> None:
    """Removes a channel."""
    notify.remove(channel_id)


@router.post("/notifications/{channel_id}/test")
def test_channel(channel_id: str) -> Message:
    """Sends a test message now; the answer holds its outcome: `state` is delivered or given up, with the `reason`."""
    return Message.of(notify.test(channel_id))


@router.put("/tour/{step}", status_code=204)
def note_step(step: Step) -> None:
    """Notes that the caller has done a step of the tour."""
    notify.add_tour_step(step)
